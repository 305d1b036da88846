"""The loop that reads streams while it waits: what is stamped when, what is parsed when, and that asyncio goes on meanwhile."""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable

import pytest

from bench import lean, reading
from bench.hygiene import READS
from bench.reading import SLICE_READS, Desk, ReadingLoop
from bench.recording import _KEPT_READS, Recording
from bench.request import INTERRUPTED, Deadlines, Endpoint, Request
from bench.trace import Trace
from tests.bench.streams import LOOPS, SHORT, ask, stamps
from tests.bench.test_alike import chunk, framed
from tests.fakes.server import EVENT_STREAM, head

HEAD = head(200, EVENT_STREAM)
END = framed(chunk("", 0).replace(b'"finish_reason":null', b'"finish_reason":"stop"')) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Peer:
    """A listening socket, and the server's end of the one connection that it takes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.listener.getsockname()[1]}")

    def play(self, serve: Callable[[socket.socket], None]) -> threading.Thread:
        def go() -> None:
            with self.listener.accept()[0] as peer:
                peer.recv(65536)
                serve(peer)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def peer() -> object:
    peer = Peer()
    yield peer
    peer.close()


def streamed(peer: Peer, serve: Callable[[socket.socket], None], loop: str = "reading", deadlines: Deadlines = SHORT) -> Trace:
    thread = peer.play(serve)
    trace: Trace = LOOPS[loop](lean.stream(peer.endpoint, ask("x"), deadlines))
    thread.join(5)
    return trace


def test_the_loop_is_the_reading_one_where_there_is_epoll() -> None:
    async def kind() -> bool:
        return isinstance(asyncio.get_running_loop(), ReadingLoop)

    assert lean.run(kind()) is hasattr(select, "epoll")


@pytest.mark.parametrize("loop", LOOPS)
def test_reads_are_kept_and_parsed_with_the_times_they_came_at(peer: Peer, loop: str) -> None:
    """Three chunks 0.1 s apart that nothing parses until the end comes 0.3 s later."""

    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)))
        for count in (2, 3, 4):
            time.sleep(0.1)
            sock.sendall(framed(chunk("b", count)))
        time.sleep(0.3)
        sock.sendall(END)

    trace = streamed(peer, serve, loop)
    assert (trace.error, trace.text, trace.kinds, trace.tokens) == (None, "abbb", "ccccf", (1, 2, 3, 4, 0))
    gaps = [later - earlier for earlier, later in zip(trace.t_s, trace.t_s[1:], strict=False)]
    assert all(gap > least for gap, least in zip(gaps, (0.05, 0.05, 0.05, 0.2), strict=True)), gaps


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stream_of_which_reads_are_kept_is_known_when_it_stalls(peer: Peer, loop: str) -> None:
    """0.4 s of silence are allowed; chunks that nobody has parsed yet are data all the same."""
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)))
        for count in range(2, 6):
            time.sleep(0.2)
            sock.sendall(framed(chunk("b", count)))
        over.wait(5)

    begin = time.monotonic()
    trace = LOOPS[loop](_then(peer, serve, over))
    assert (trace.error, trace.text) == ("stalled: no data for 0.4 s after 5 chunks", "abbbb")
    assert 1.15 < time.monotonic() - begin < 4


async def _then(peer: Peer, serve: Callable[[socket.socket], None], over: threading.Event) -> Trace:
    peer.play(serve)
    try:
        return await lean.stream(peer.endpoint, ask("x"), SHORT)
    finally:
        over.set()


@pytest.mark.parametrize("loop", LOOPS)
def test_what_was_read_before_an_interruption_is_in_the_trace(peer: Peer, loop: str) -> None:
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)))
        for count in (2, 3):
            time.sleep(0.05)
            sock.sendall(framed(chunk("b", count)))
        over.wait(5)

    async def go() -> Trace:
        task = asyncio.create_task(_then(peer, serve, over))
        await asyncio.sleep(0.4)
        task.cancel()
        return await task

    trace = LOOPS[loop](go())
    assert (trace.error, trace.text, trace.kinds) == (INTERRUPTED, "abb", "ccc")


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("fault", "error"), [
    (framed(b'{"error":{"message":"engine is dead"}}'), "broken off after 2 chunks: the server reports: engine is dead"),
    (b"data: no chunk\r\n\r\n", "broken off after 2 chunks: BadResponse"),
    (framed(b"{nonsense}"), "broken off after 2 chunks: JSONDecodeError"),
], ids=["error event", "no HTTP", "no JSON"])  # fmt: skip
def test_a_fault_ends_the_stream_at_once(peer: Peer, loop: str, fault: bytes, error: str) -> None:
    """The server stays silent after it, but nobody waits for the stall of 5 s."""
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)))
        time.sleep(0.1)
        sock.sendall(framed(chunk("b", 2)))
        time.sleep(0.1)
        sock.sendall(fault)
        over.wait(20)

    async def go() -> Trace:
        peer.play(serve)
        try:
            return await lean.stream(peer.endpoint, ask("x"), Deadlines(first_s=5, stall_s=5))
        finally:
            over.set()

    begin = time.monotonic()
    trace = LOOPS[loop](go())
    assert str(trace.error).startswith(error)
    assert time.monotonic() - begin < 4


class Slow:
    """A stream with so many slices of work, each of 5 ms."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: int, done: list[str], name: str) -> None:
        self.loop, self._left, self._done, self._name = loop, slices, done, name

    def work(self, reads: int) -> bool:
        assert reads == SLICE_READS
        time.sleep(0.005)
        self._left -= 1
        self._done.append(self._name)
        return self._left > 0


def test_a_long_answer_is_parsed_in_slices_between_which_others_are_read() -> None:
    """40 slices of 5 ms: a socket that is ready all the while is read every few ms, and a short one does not wait for the long one."""

    async def go() -> tuple[list[int], list[str]]:
        running = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        recording = Recording(Deadlines(), None)
        recording.begin(ours, b"x")
        recording._at_once = False
        done: list[str] = []
        desk = Desk()
        desk.want(Slow(running, 40, done, "long"))
        desk.want(Slow(running, 1, done, "short"))
        while done.count("long") < 40:
            theirs.send(b"y" * 200)
            await asyncio.sleep(0)
        at_ns = list(recording._at_ns)
        recording._kept.clear()
        recording._at_ns.clear()
        recording.close()
        theirs.close()
        return at_ns, done

    at_ns, done = lean.run(go())
    assert done[:3] == ["long", "short", "long"]
    assert len(at_ns) >= 30


def test_a_very_long_answer_does_not_fill_the_memory() -> None:
    async def go() -> int:
        recording = Recording(Deadlines(), None)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        recording.begin(ours, b"x")
        first = HEAD + framed(chunk("a", 1))
        most = 0
        for number in range(_KEPT_READS + 500):
            theirs.send(first if not number else framed(chunk("b", number)))
            await asyncio.sleep(0)
            most = max(most, len(recording._kept))
        theirs.close()
        await asyncio.wait_for(recording.over, 5)
        recording.close()
        assert len(recording.columns.at_ns) == _KEPT_READS + 500
        return most

    assert lean.run(go()) <= _KEPT_READS + 2


def test_a_server_that_reads_slowly_gets_the_whole_request(peer: Peer) -> None:
    got: list[int] = []

    def serve() -> None:
        with peer.listener.accept()[0] as sock:
            time.sleep(0.3)  # the socket's buffers are full by then
            parts = [b""]
            while not parts[-1].endswith(b"}"):
                parts.append(sock.recv(1 << 18))
            got.append(len(b"".join(parts).partition(b"\r\n\r\n")[2]))
            sock.sendall(HEAD + framed(chunk("a", 1)) + END)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    request = Request("m", "x" * (8 << 20), 9)
    trace = lean.run(lean.stream(peer.endpoint, request, Deadlines(first_s=60, stall_s=60)))
    thread.join(5)
    assert (trace.error, trace.text) == (None, "a")
    assert got[0] > 8 << 20


@pytest.mark.parametrize("loop", LOOPS)
def test_a_refusal_before_the_request_was_read_is_told(peer: Peer, loop: str) -> None:
    def serve() -> None:
        with peer.listener.accept()[0] as sock:
            sock.recv(1000)
            sock.sendall(b'HTTP/1.1 413 Too Large\r\nContent-Length: 31\r\n\r\n{"error":{"message":"too big"}}')
            time.sleep(0.2)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    trace = LOOPS[loop](lean.stream(peer.endpoint, Request("m", "x" * (32 << 20), 9), SHORT))
    thread.join(5)
    assert trace.error == "HTTP 413: too big"


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only Linux stamps what a TCP socket receives")
def test_times_are_right_though_reads_are_put_off(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks 0.1 s apart, looks 1 s: the second and third are read together, and the third has the time it came at."""
    monkeypatch.setattr(reading, "APART_S", 1.0)
    sent: list[tuple[float, float]] = []

    def send(sock: socket.socket, data: bytes) -> None:
        begin = time.monotonic()
        sock.sendall(data)
        sent.append((begin, time.monotonic()))

    def serve(sock: socket.socket) -> None:
        send(sock, HEAD + framed(chunk("a", 1)))
        for count in (2, 3):
            time.sleep(0.1)
            send(sock, framed(chunk("b", count)))
        time.sleep(1.5)  # not in the read of the third
        sock.sendall(END)

    unstamped = READS.unstamped
    begins: list[int] = []
    thread = peer.play(serve)
    with stamps():
        trace = lean.run(lean.stream(peer.endpoint, ask("x"), Deadlines(), None, begins.append))
    thread.join(5)
    assert (trace.error, trace.text, trace.tokens[:3]) == (None, "abb", (1, 2, 3))
    at_s = [begins[0] / 1e9 + t_s for t_s in trace.t_s[:3]]
    for at, (earliest, latest) in ((at_s[0], sent[0]), (at_s[2], sent[2])):
        assert earliest - 0.001 < at < latest + 0.001
    assert at_s[1] == at_s[2]  # one read
    assert READS.unstamped == unstamped


@pytest.mark.parametrize("loop", LOOPS)
def test_events_of_one_read_have_one_time(peer: Peer, loop: str) -> None:
    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)) + framed(chunk("b", 2)) + framed(chunk("c", 3)))
        time.sleep(0.1)
        sock.sendall(END)

    trace = streamed(peer, serve, loop)
    assert (trace.error, trace.text) == (None, "abc")
    assert trace.t_s[0] == trace.t_s[1] == trace.t_s[2]
