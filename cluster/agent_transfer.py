"""The node agent, part for moving bytes: one end of a short transfer between two nodes, by TCP or by perftest's ib_write_bw.

Sent after agent.py and agent_cluster.py in the same program. Standard library only. What is sent is zeros out of one buffer and what
arrives is thrown away: a stream takes a MiB of memory at each end, however much is moved.
"""

# mypy: ignore-errors

import contextlib

with contextlib.suppress(ImportError):  # sent as one text: everything is here already
    from cluster.agent import ACTIONS

import hmac
import re
import socket
import subprocess
import threading
import time

_BUFFER = 1 << 20
_GRACE_S = 5  # beyond the transfer's own limit: to drain what is on the way


def transfer_receive(request):
    """Take `streams` streams with the right token and read them to their end.

    Returns bytes, and seconds from the first byte to the last end. request: address, port, token, streams, wait_s, limit_s.
    """
    token = request["token"].encode()
    try:
        server = socket.create_server((request["address"], request["port"]), backlog=request["streams"])
    except OSError as error:
        raise SystemExit(f"cannot listen on {request['address']} port {request['port']}: {error.strerror or error}") from error
    with server, contextlib.ExitStack() as stack:
        streams = accepted(server, stack, token, request["streams"], time.monotonic() + request["wait_s"])
        ends = [{"bytes": 0} for _ in streams]
        stop = time.monotonic() + request["limit_s"] + _GRACE_S
        together([(drain, stream, end, stop) for stream, end in zip(streams, ends, strict=True)])
    begun = [end["first_s"] for end in ends if "first_s" in end]
    seconds = max(end["last_s"] for end in ends) - min(begun) if begun else 0.0
    return {"bytes": sum(end["bytes"] for end in ends), "seconds": seconds}


def accepted(server, stack, token, count, stop):
    """Connections that begin with the token; others are closed at once."""
    streams = []
    while len(streams) < count:
        left = stop - time.monotonic()
        if left <= 0:
            raise SystemExit(f"{len(streams)} of {count} streams arrived in time")
        server.settimeout(left)
        with contextlib.suppress(OSError):  # nobody came, or went again
            stream = server.accept()[0]
            if introduced(stream, token):
                streams.append(stack.enter_context(stream))
            else:
                stream.close()
    return streams


def introduced(stream, token):
    """Whether it begins with the token."""
    stream.settimeout(2)
    try:
        return hmac.compare_digest(stream.recv(len(token), socket.MSG_WAITALL), token)
    except OSError:
        return False


def drain(stream, end, stop):
    buffer = bytearray(_BUFFER)
    with contextlib.suppress(OSError):  # silent too long: what came so far counts
        while time.monotonic() < stop:
            stream.settimeout(max(0.01, stop - time.monotonic()))
            count = stream.recv_into(buffer)
            end["last_s"] = time.monotonic()
            end.setdefault("first_s", end["last_s"])
            if not count:
                return
            end["bytes"] += count
    end["last_s"] = time.monotonic()


def transfer_send(request):
    """Send zeros over `streams` streams until limit_s or limit_bytes. request: address, source, port, token, streams, wait_s, ...

    Returns the bytes handed to the kernel; the receiver's count is the measurement.
    """
    with contextlib.ExitStack() as stack:
        stop = time.monotonic() + request["wait_s"]
        streams = [stack.enter_context(connected(request, stop)) for _ in range(request["streams"])]
        for stream in streams:
            stream.sendall(request["token"].encode())
        ends = [{"bytes": 0} for _ in streams]
        stop = time.monotonic() + request["limit_s"]
        share = request["limit_bytes"] // len(streams)
        together([(pour, stream, end, stop, share) for stream, end in zip(streams, ends, strict=True)])
    return {"bytes": sum(end["bytes"] for end in ends)}


def connected(request, stop):
    """A connection from our fabric address to the other end's; tried again until the other end listens."""
    while True:
        try:
            return socket.create_connection((request["address"], request["port"]), timeout=3, source_address=(request["source"], 0))
        except OSError as error:
            if time.monotonic() > stop:
                raise SystemExit(f"no connection to {request['address']} port {request['port']}: {error.strerror or error}") from error
            time.sleep(0.1)


def pour(stream, end, stop, share):
    zeros = memoryview(bytes(_BUFFER))
    with contextlib.suppress(OSError):  # a send that takes too long: the receiver tells what arrived
        while end["bytes"] < share and time.monotonic() < stop:
            stream.settimeout(max(0.01, stop - time.monotonic()))
            end["bytes"] += stream.send(zeros[: min(_BUFFER, share - end["bytes"])])
        stream.shutdown(socket.SHUT_WR)


def together(calls):
    threads = [threading.Thread(target=call[0], args=call[1:], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def transfer_rdma(request):
    """One end of ib_write_bw; with an `address` the client. Returns what it printed. request: words, address, wait_s, limit_s."""
    words = ["ib_write_bw", *request["words"], *([request["address"]] if request["address"] else [])]
    stop = time.monotonic() + request["wait_s"]
    limit_s = request["wait_s"] + request["limit_s"] + _GRACE_S
    while True:
        try:
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"ib_write_bw did not end within {limit_s} s") from error
        if done.returncode == 0:
            return {"out": done.stdout}
        early = request["address"] and re.search("connect|refused", done.stderr + done.stdout, re.IGNORECASE)
        if not early or time.monotonic() > stop:
            raise SystemExit(f"ib_write_bw ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        time.sleep(0.2)


ACTIONS |= {"transfer_receive": transfer_receive, "transfer_send": transfer_send, "transfer_rdma": transfer_rdma}
