"""Where a chat request goes, and the open socket on which it goes there."""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.errors import BadRequest
from bench.request import Endpoint

# What a non-blocking socket says when there is nothing to read, or no room to write, yet.
LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@dataclass(frozen=True)
class Where:
    """Where a chat request goes."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def of(cls, endpoint: Endpoint) -> Where:
        """Raises BadRequest for a URL without host or with an impossible port."""
        try:
            url = urllib.parse.urlsplit(endpoint.base_url)
            tls = url.scheme == "https"
            host, port = url.hostname, url.port or (443 if tls else 80)
        except ValueError as error:
            raise BadRequest(f"'{endpoint.base_url}' is no URL of a server: {error}\ntry: --base-url http://HOST:PORT") from error
        if not host:
            raise BadRequest(f"'{endpoint.base_url}' is no URL of a server\ntry: --base-url http://HOST:PORT")
        return cls(host, port, f"{url.path.rstrip('/')}/v1/chat/completions", tls)


async def connect(where: Where, limit_s: float) -> socket.socket:
    """A non-blocking connection, over TLS where wanted. Raises OSError or TimeoutError, which says how long it was tried."""
    try:
        async with asyncio.timeout(limit_s):
            plain = await _first_that_answers(where)
            return await _encrypted(plain, where.host) if where.tls else plain
    except TimeoutError as error:
        raise TimeoutError(f"none within {limit_s:g} s") from error


async def _first_that_answers(where: Where) -> socket.socket:
    """Each address of the name in turn. Raises the last one's OSError."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{where.host} has no address")
    for family, kind, proto, _, address in await _addresses(where):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _addresses(where: Where) -> list[tuple[Any, ...]]:
    """As getaddrinfo gives them. A host that is a number needs no other thread, and those that look up names cost more than connecting."""
    try:
        return list(socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except socket.gaierror:
        return list(await asyncio.get_running_loop().getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM))


async def _encrypted(plain: socket.socket, host: str) -> ssl.SSLSocket:
    # The context is made here, not once: the certificates that the system trusts may change, and a test may set its own.
    sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                sock.do_handshake()
            except ssl.SSLWantReadError:
                await _turn(sock, writing=False)
            except ssl.SSLWantWriteError:
                await _turn(sock, writing=True)
            else:
                return sock
    except BaseException:
        sock.close()
        raise


async def _turn(sock: socket.socket, *, writing: bool) -> None:
    """Wait until it can be read, or written."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    begin: Callable[..., None] = loop.add_writer if writing else loop.add_reader
    end = loop.remove_writer if writing else loop.remove_reader

    def come() -> None:
        if not turn.done():
            turn.set_result(None)

    begin(sock.fileno(), come)
    try:
        await turn
    finally:
        end(sock.fileno())


class Sender:
    """Sends one request, as fast as the peer takes it, without waiting.

    A failure to send is not reported: what the server has said before it closed is still to be read, and reading ends with the failure.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop, self._sock = loop, sock
        self._waits = False

    def send(self, words: bytes | memoryview) -> None:
        self.stop()
        left = memoryview(words)
        try:
            while left:
                left = left[self._sock.send(left) :]
        except LATER:
            self._waits = True
            self._loop.add_writer(self._sock.fileno(), self.send, left)
        except OSError:
            pass

    def stop(self) -> None:
        if self._waits:
            self._waits = False
            self._loop.remove_writer(self._sock.fileno())
