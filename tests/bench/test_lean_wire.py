"""The lean client's connection: how it is made, ended, interrupted and shared, and what it makes of other protocols."""

import asyncio
import base64
import gc
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from bench import lean, openai_stream, reading
from bench.errors import BadRequest
from bench.hygiene import READS
from bench.request import INTERRUPTED, Deadlines, Endpoint, Request
from bench.trace import Trace
from tests.bench.streams import LOOPS, SHORT, ask, scenario
from tests.fakes.sse_server import ROOT, ScriptedServer


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(scenario()) as server:
        yield server


@pytest.mark.parametrize("loop", LOOPS)
def test_refused(loop: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: connecting is refused
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        trace = LOOPS[loop](lean.stream(Endpoint(url), ask("x"), SHORT))
    assert trace.kinds == ""
    assert "broken off after 0 chunks: no connection to 127.0.0.1:" in str(trace.error)
    assert "refused" in str(trace.error).lower()


def test_a_host_that_takes_no_connection() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # the queue of the listener is full: a further SYN gets no answer
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        begin = time.monotonic()
        trace = lean.run(lean.stream(Endpoint(f"http://127.0.0.1:{address[1]}"), ask("x"), Deadlines(connect_s=0.3)))
        for one in waiting:
            one.close()
    assert "none within 0.3 s" in str(trace.error)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize("loop", LOOPS)
def test_interrupted(server: ScriptedServer, loop: str) -> None:
    still_cancelled: list[int] = []

    async def one() -> Trace:
        trace = await lean.stream(Endpoint(server.base_url), ask("endless"), Deadlines())
        task = asyncio.current_task()
        still_cancelled.append(task.cancelling() if task else -1)
        return trace

    async def go() -> Trace:
        task = asyncio.create_task(one())
        await asyncio.sleep(0.3)
        task.cancel()
        return await task

    trace = LOOPS[loop](go())
    assert (trace.error, trace.kinds) == (INTERRUPTED, "c")
    assert still_cancelled == [0]  # the caller may go on: write its receipt, await other things


def test_a_listener_that_cannot_write_is_heard(server: ScriptedServer) -> None:
    def broken(kind: str, text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        lean.run(lean.stream(Endpoint(server.base_url), ask("counting"), Deadlines(), broken))


def test_a_listener_hears_every_delta(server: ScriptedServer) -> None:
    heard: list[tuple[str, str]] = []
    lean.run(lean.stream(Endpoint(server.base_url), ask("reasoning"), Deadlines(), lambda kind, text: heard.append((kind, text))))
    assert heard == [("k", "hm"), ("c", "a")]


def test_the_request_is_that_of_the_official_client(server: ScriptedServer) -> None:
    request = Request("test-model", "<bursts> now", 9, thinking="high", history=(("user", "a"), ("assistant", "b")))
    endpoint = Endpoint(server.base_url, "s3cret", "vllm")
    lean.run(lean.stream(endpoint, request, SHORT))
    asyncio.run(openai_stream.stream(endpoint, request, SHORT))
    ours, theirs = server.requests()[-2:]
    assert ours.body == theirs.body
    assert ours.body["messages"] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                     {"role": "user", "content": "<bursts> now"}]  # fmt: skip
    assert (ours.path, ours.headers["authorization"]) == (theirs.path, "Bearer s3cret")


@pytest.mark.parametrize("url", ["http://", "http://h:99999", "http://[::1"])
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="is no URL of a server"):
        lean.run(lean.stream(Endpoint(url), ask("x"), SHORT))


def test_a_key_with_a_line_break_is_not_sent(server: ScriptedServer) -> None:
    with pytest.raises(BadRequest, match="line break"):
        lean.run(lean.stream(Endpoint(server.base_url, "a\r\nX: y"), ask("x"), SHORT))


def test_many_streams_share_one_loop(server: ScriptedServer) -> None:
    before = READS.copy()
    began: list[int] = []

    async def go() -> list[Trace]:
        one = Endpoint(server.base_url)
        return await asyncio.gather(*(lean.stream(one, ask("counting"), Deadlines(), None, began.append) for _ in range(16)))

    traces = lean.run(go())
    assert {trace.text for trace in traces} == {"".join(f"{number}\n" for number in range(1, 41))}
    assert len(began) == 16
    assert READS.events - before.events == 16 * 43  # role, 40 numbers, finish, usage
    assert READS.reads - before.reads > 100


def one_answer(answer: bytes) -> Trace:
    """The trace of a server that answers these bytes and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        trace = lean.run(lean.stream(Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}"), ask("x"), SHORT))
        thread.join(5)
    return trace


BODY = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\n\r\n",
    ],
    ids=["until-close", "length", "continue"],
)
def test_bodies_that_are_not_chunked(head: bytes) -> None:
    trace = one_answer(head + BODY)
    assert (trace.kinds, trace.text, trace.error) == ("c", "a", None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "broken off after 0 chunks: BadResponse: no HTTP/1.1 answer: b'SSH-2.0-OpenSSH_9"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nx", "a body compressed with gzip"),
        (b"HTTP/1.1 307 T\r\nLocation: http://b/\r\nContent-Length: 0\r\n\r\n", "HTTP 307: redirected to http://b/"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>hello", "no event stream: the body starts with b'<html>hello'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + BODY, "the connection closed inside the answer"),
        (b"", "the connection closed before an answer"),
    ],
    ids=["ssh", "gzip", "redirect", "html", "short", "nothing"],
)
def test_what_is_no_event_stream_is_named(answer: bytes, error: str) -> None:
    assert error in str(one_answer(answer).error)


def test_an_image_travels(server: ScriptedServer) -> None:
    picture = base64.b64encode(b"png").decode()
    content = [{"type": "text", "text": "<bursts>"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    lean.run(lean.stream(Endpoint(server.base_url), Request("test-model", content, 5), SHORT))
    assert server.requests()[-1].body["messages"][0]["content"] == content


@pytest.mark.parametrize("loop", LOOPS)
def test_a_finished_loop_is_let_go(server: ScriptedServer, loop: str) -> None:
    LOOPS[loop](lean.stream(Endpoint(server.base_url), ask("bursts"), SHORT))
    gc.collect()
    assert len(reading.DESKS) == 0


CHILD = """
import asyncio, sys
from bench import lean
from bench.request import Deadlines, Endpoint, Request
run = lean.run if sys.argv[2] == "reading" else asyncio.run
def told(kind, text):
    print("told", flush=True)
trace = run(lean.stream(Endpoint(sys.argv[1]), Request("m", "<endless>", 9), Deadlines(), told))
print(trace.error, trace.kinds)
"""


@pytest.mark.parametrize("loop", LOOPS)
def test_ctrl_c_ends_the_trace(server: ScriptedServer, loop: str) -> None:
    argv = [sys.executable, "-c", CHILD, server.base_url, loop]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "told\n"
        child.send_signal(signal.SIGINT)
        said, errors = child.communicate(timeout=20)
    assert (said, errors, child.returncode) == (f"{INTERRUPTED} c\n", "", 0)


def test_https_to_a_plain_server_is_a_fault_of_the_connection(server: ScriptedServer) -> None:
    trace = lean.run(lean.stream(Endpoint(server.base_url.replace("http:", "https:")), ask("bursts"), SHORT))
    assert "broken off after 0 chunks: no connection to 127.0.0.1:" in str(trace.error)
