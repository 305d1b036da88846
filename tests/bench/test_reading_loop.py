"""The reading loop beside what is not a stream: timers, other files, its selector; and streams over TLS."""

import asyncio
import selectors
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from bench import lean
from bench.hygiene import Watch
from bench.reading import Selector
from bench.recording import Recording
from bench.request import Deadlines, Endpoint
from tests.bench.streams import LOOPS, ask
from tests.bench.test_alike import chunk, framed
from tests.bench.test_reading import END, HEAD


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
