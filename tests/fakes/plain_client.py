"""A deliberately plain HTTP client for the tests of the scripted server: http.client, and bare sockets that show
where the server cut its HTTP chunks. Shares no code with the server."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.fakes.script import Reply, Scenario
from tests.fakes.sse_server import ScriptedServer


def body(text: str = "hello", stream: bool = True, model: str = "test-model") -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}


def request(server: ScriptedServer, data: Any = None, path: str = "/v1/chat/completions", key: str = "") -> Any:
    """(status, headers, body) by http.client; a GET where there is no data."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection.request("POST" if data else "GET", path, json.dumps(data) if data else None, headers)
    answer = connection.getresponse()
    result = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return result


@contextmanager
def raw(server: ScriptedServer, data: dict[str, Any] | None = None) -> Iterator[socket.socket]:
    """A bare socket on which the chat request has been sent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        ask(sock, data or body())
        yield sock


def ask(sock: socket.socket, data: dict[str, Any]) -> None:
    text = json.dumps(data).encode()
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Two: a\r\nx-two: b\r\n")
    sock.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))


def until(sock: socket.socket, mark: bytes) -> bytes:
    data = b""
    while not data.endswith(mark):
        piece = sock.recv(1)
        if not piece:
            raise EOFError(data)
        data += piece
    return data


def chunks(sock: socket.socket) -> Iterator[bytes]:
    """The HTTP chunks of one answer, as they were cut; the empty last one is not yielded."""
    while size := int(until(sock, b"\r\n"), 16):
        yield b"".join(sock.recv(1) for _ in range(size))
        assert until(sock, b"\r\n") == b"\r\n"
    until(sock, b"\r\n")


def one_stream(server: ScriptedServer, text: str = "hello") -> list[bytes]:
    """The HTTP chunks of one streamed answer to this user message."""
    with raw(server, body(text)) as sock:
        assert until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
        return list(chunks(sock))


def streamed(reply: Reply) -> list[bytes]:
    with ScriptedServer(Scenario([reply])) as server:
        return one_stream(server)


def documents(pieces: list[bytes]) -> list[Any]:
    events = b"".join(pieces).decode().split("\n\n")
    return [json.loads(event[6:]) for event in events if event.startswith("data: {")]


def eventually(truth: Callable[[], Any]) -> None:
    end = time.monotonic() + 5
    while not truth():
        assert time.monotonic() < end
        time.sleep(0.01)


def series(server: ScriptedServer) -> dict[str, float]:
    lines = request(server, path="/metrics")[2].splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}
