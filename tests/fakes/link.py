"""One TCP connection of the scripted server: read HTTP/1.1 requests, write bytes at once, cut.

An asyncio Protocol, not a StreamWriter: `send` must return when the kernel has the bytes, and the task that serves
must be cancelled as soon as the client leaves.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.stamping import Connection


@dataclass(frozen=True)
class Request:
    """Header names in lower case, repeated ones joined by ", ". `body`: the JSON, else the text, None if empty. t_came_ns: when its
    last byte had come by the kernel's stamp, t_received_ns: when that was read; the same where there is no stamp."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    t_received_ns: int
    t_came_ns: int

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class Link(asyncio.Protocol):
    """Mutable; made by `loop.create_server`, which calls `serve(link)` as a task for each connection of the listener."""

    def __init__(self, serve: Any, connections: Mapping[int, Connection]) -> None:
        self._serve, self._connections = serve, connections
        self._came_ns = 0
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._serve(self))

    def data_received(self, data: bytes) -> None:
        self._came_ns = self._connections[self._socket.fileno()].came_ns
        self._buffer += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also after the client's FIN: a half-closed client counts as one that left."""
        self.gone = True
        self._changed.set()
        self._drained.set()
        self.task.cancel()

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    async def send(self, data: bytes) -> int:
        """Return CLOCK_MONOTONIC ns when the kernel has taken all bytes. Raise ConnectionError where it will not."""
        self._transport.write(data)
        await self._drained.wait()
        now = time.monotonic_ns()
        if self.gone or self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        return now

    def cut(self, mode: str) -> None:
        """Mode "reset": the peer gets a RST; "close": a FIN."""
        if mode == "reset":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    async def request(self) -> Request:
        """The next request. Raise ConnectionError at the end of the connection, ValueError for what is no HTTP/1.1."""
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        raw = await self._exactly(int(headers.get("content-length", "0")))
        received_ns = time.monotonic_ns()
        return Request(method, path, headers, _body(raw), received_ns, min(self._came_ns or received_ns, received_ns))

    async def _until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            await self._more()
        return (await self._exactly(end + len(mark)))[:end]

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _more(self) -> None:
        if self.gone:
            raise ConnectionResetError("the client has left")
        self._changed.clear()
        await self._changed.wait()


def _body(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")
