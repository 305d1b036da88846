"""The loop that reads streams while it waits: what is stamped when, what is parsed when, and that asyncio goes on meanwhile."""

import asyncio
import select
import selectors
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import lean, reading
from bench.hygiene import READS, Watch
from bench.reading import SLICE_READS, Desk, ReadingLoop, Selector
from bench.recording import _KEPT_READS, Recording
from bench.request import INTERRUPTED, Deadlines, Endpoint, Request
from bench.trace import Trace
from tests.bench.streams import LOOPS, SHORT, ask
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


@pytest.mark.parametrize("loop", LOOPS)
def test_timers_and_other_files_go_on_while_streams_are_read(loop: str) -> None:
    """A stream that is ready all the time starves nothing."""

    async def go() -> tuple[int, bytes, float | None]:
        running = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        a, b = socket.socketpair()
        a.setblocking(False)
        recording = Recording(Deadlines(), None)
        recording.begin(ours, b"x")
        recording._at_once = False
        stop = threading.Event()

        def flood() -> None:
            while not stop.is_set():
                theirs.send(b"y" * 200)
                time.sleep(0.0002)

        thread = threading.Thread(target=flood)
        thread.start()
        running.call_later(0.3, b.send, b"hello")
        with Watch() as watch:
            said = await asyncio.wait_for(running.sock_recv(a, 10), 5)
        stop.set()
        thread.join()
        kept = len(recording._kept)
        recording._kept.clear()
        recording._at_ns.clear()
        recording.close()
        for sock in (theirs, a, b):
            sock.close()
        return kept, said, watch.report().lag_p99_s

    kept, said, lag_s = LOOPS[loop](go())
    assert kept > 50
    assert said == b"hello"
    assert lag_s is not None
    assert lag_s < 0.1


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


def test_a_selector_is_that_of_asyncio_for_everything_else() -> None:
    a, b = socket.socketpair()
    selector = Selector()
    key = selector.register(a, selectors.EVENT_READ, "data")
    assert selector.get_map()[a] == key
    assert selector.select(0.01) == []
    b.send(b"x")
    assert selector.select(1) == [(key, selectors.EVENT_READ)]
    assert selector.modify(a, selectors.EVENT_WRITE).events == selectors.EVENT_WRITE
    assert selector.unregister(a).fileobj is a
    selector.close()
    a.close()
    b.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(path), "-out", str(path.with_suffix(".crt"))]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(words, check=True, capture_output=True)
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("trusted", [True, False])
def test_https(certificate: Path, monkeypatch: pytest.MonkeyPatch, loop: str, trusted: bool) -> None:
    """A real TLS server; records cut where it likes, and one of a MiB, which is many reads."""
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    big = "w" * (1 << 20)

    def serve(listener: socket.socket) -> None:
        try:
            with context.wrap_socket(listener.accept()[0], server_side=True) as sock:
                sock.recv(65536)
                sock.sendall(HEAD + framed(chunk("a", 1)))
                for count in range(2, 22):
                    time.sleep(0.005)
                    data = framed(chunk("b", count))
                    sock.sendall(data[:50])
                    sock.sendall(data[50:])
                sock.sendall(framed(chunk(big, 22)))
                sock.sendall(END)
                sock.recv(1)
        except (ssl.SSLError, ConnectionError):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        where = Endpoint(f"https://127.0.0.1:{listener.getsockname()[1]}")
        trace = LOOPS[loop](lean.stream(where, ask("x"), Deadlines(connect_s=5, first_s=5, stall_s=5)))
        thread.join(10)
    if trusted:
        assert (trace.error, trace.text, len(trace.t_s)) == (None, "a" + "b" * 20 + big, 23)
        assert trace.tokens[:22] == tuple(range(1, 23))
    else:
        assert "certificate verify failed" in str(trace.error)


class Looks:
    """Two patient streams of a selector, and what was read of them when."""

    def __init__(self, patient: bool = True) -> None:
        self.selector = Selector()
        self.pairs = [socket.socketpair() for _ in range(2)]
        self.read_s: list[tuple[int, float]] = []
        for number, (ours, _) in enumerate(self.pairs):
            self.selector.watch(ours.fileno(), self._reader(number, ours), patient=patient or not number)

    def _reader(self, number: int, sock: socket.socket) -> Callable[[], bool]:
        def ready() -> bool:
            sock.recv(10)
            self.read_s.append((number, time.monotonic()))
            return False

        return ready

    def send(self, number: int) -> None:
        self.pairs[number][1].send(b"x")

    def close(self) -> None:
        self.selector.close()
        for ours, theirs in self.pairs:
            ours.close()
            theirs.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> float:
    """Looks 0.3 s apart, so that no busy machine blurs them."""
    monkeypatch.setattr(reading, "APART_S", 0.3)
    return 0.3


def test_streams_that_are_ready_soon_after_a_look_are_read_together_at_the_next(apart: float) -> None:
    looks = Looks()
    looks.send(0)
    put_off = READS.put_off
    begin = time.monotonic()
    assert looks.selector.select(0.01) == []  # quiet before: at once
    looks.send(0)
    threading.Timer(0.1, looks.send, [1]).start()
    assert looks.selector.select(1) == []
    looks.close()
    assert [number for number, _ in looks.read_s[1:]] == [0, 1]
    first, early, late = [at for _, at in looks.read_s]
    assert early - first > 0.25  # it waited until 0.3 s after the first look, and the other, which came meanwhile, was read with it
    assert late - early < 0.2
    assert first - begin < 0.25
    assert READS.put_off == put_off + 1


def test_a_timer_is_not_put_off(apart: float) -> None:
    looks = Looks()
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(1)
    begin = time.monotonic()
    assert looks.selector.select(0.05) == []
    took = time.monotonic() - begin
    looks.close()
    assert 0.045 < took < 0.25
    assert [number for number, _ in looks.read_s] == [0, 1]


def test_other_files_are_not_put_off(apart: float) -> None:
    looks = Looks()
    a, b = socket.socketpair()
    key = looks.selector.register(a, selectors.EVENT_READ)
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(1)
    b.send(b"x")
    begin = time.monotonic()
    assert looks.selector.select(5) == [(key, selectors.EVENT_READ)]
    took = time.monotonic() - begin
    looks.close()
    a.close()
    b.close()
    assert took < 0.25


def test_a_stream_without_stamps_has_all_read_at_once(apart: float) -> None:
    looks = Looks(patient=False)
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(0)
    begin = time.monotonic()
    looks.selector.select(0.4)
    looks.selector.unwatch(looks.pairs[1][0].fileno())  # it has gone: patience again, from the next look on
    for timeout_s in (0.001, 0.4):
        looks.send(0)
        looks.selector.select(timeout_s)
    looks.close()
    assert looks.read_s[1][1] - begin < 0.25
    assert looks.read_s[3][1] - looks.read_s[2][1] > 0.25


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only Linux stamps what a TCP socket receives")
def test_times_are_right_though_reads_are_put_off(peer: Peer, apart: float) -> None:
    """Chunks 0.1 s apart of which the second to fourth are read in one look each 0.3 s: the last of them has the time it came at."""
    sent: list[float] = []

    def serve(sock: socket.socket) -> None:
        sock.sendall(HEAD + framed(chunk("a", 1)))
        sent.append(time.monotonic())
        for count in (2, 3):
            time.sleep(0.1)
            sock.sendall(framed(chunk("b", count)))
            sent.append(time.monotonic())
        time.sleep(0.5)
        sock.sendall(END)

    unstamped = READS.unstamped
    begins: list[int] = []
    thread = peer.play(serve)
    trace = lean.run(lean.stream(peer.endpoint, ask("x"), Deadlines(), None, begins.append))
    thread.join(5)
    assert (trace.error, trace.text, trace.tokens[:3]) == (None, "abb", (1, 2, 3))
    at_s = [begins[0] / 1e9 + t_s for t_s in trace.t_s[:3]]
    assert abs(at_s[0] - sent[0]) < 0.05
    assert abs(at_s[2] - sent[2]) < 0.05
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
