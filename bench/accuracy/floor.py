"""`python -m bench.accuracy.floor`: CPU time of the parts of which one token of the lean client is made, each alone, on loopback sockets.

What is left of a measured total is what these do not have: caches that went cold while the client slept or the server wrote.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.arrival import ROOM, receive, stamped
from bench.reading import run
from bench.recording import Recording
from bench.request import Deadlines

_SOCKETS, _ROUNDS, _SLEEPS = 32, 200, 1000
_CHUNK = (
    b'bc\r\ndata: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"tok "}}]}'
    + b" " * 74
    + b"\n\n\r\n"
)


def per_call_us(calls: int, before: Callable[[], None], timed: Callable[[], None]) -> float:
    """Median CPU time of one of the `calls` in `timed`, of this thread, `before` left out."""
    found = []
    for _ in range(_ROUNDS):
        before()
        began_s = time.thread_time()
        timed()
        found.append((time.thread_time() - began_s) / calls * 1e6)
    return statistics.median(found)


def kernel_us() -> float:
    """To read one chunk with its stamp; the kernel's acknowledgement to the sender is part of it."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(_SOCKETS)]
        theirs = [stack.enter_context(listener.accept()[0]) for _ in ours]
        for sock in ours:
            stamped(sock)
        reads = [receive(sock) for sock in ours]

        def send() -> None:
            for sock in theirs:
                sock.sendall(_CHUNK)

        def take() -> None:
            for read in reads:
                read(65536, ROOM)

        return per_call_us(_SOCKETS, send, take)


async def handling_us() -> float:
    recording = Recording(Deadlines(), None)
    recording._at_once, recording._last_ns = False, 0
    told = [(0, 0, struct.pack("@ll", *divmod(time.time_ns(), 1_000_000_000)))]
    recording._receive = lambda size, room: (_CHUNK, told, 0, None)

    def reads() -> None:
        for _ in range(_SOCKETS):
            recording.read()

    def forget() -> None:
        recording._kept.clear()
        recording._at_ns.clear()

    found = per_call_us(_SOCKETS, forget, reads)
    recording.close()
    return found


def waking_us() -> float:
    began_s = time.thread_time()
    for _ in range(_SLEEPS):
        time.sleep(0.0005)
    return (time.thread_time() - began_s) / _SLEEPS * 1e6


def main() -> None:
    print(f"kernel, one read with its stamp and acknowledgement: {kernel_us():.1f} us")
    print(f"Python, to stamp, look at and keep one read: {run(handling_us()):.1f} us")
    print(f"one waking, which a look of all streams takes: {waking_us():.1f} us")


if __name__ == "__main__":
    main()
