"""One connection of the lean client: what arrives on it, stamped first, parsed when all that was ready has been stamped."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from bench.chunks import Reader, ServerFault
from bench.columns import NO_FINISH, Columns
from bench.errors import BadRequest
from bench.http1 import BadResponse, Response
from bench.hygiene import READS
from bench.request import Deadlines, Endpoint, Listener
from bench.sse import Decoder
from bench.trace import Trace

_FULL_READ_BYTES = 64 << 10
_ERROR_BODY_BYTES = 64 << 10
_LEAVE_S = 0.25  # longest wait for the end of a body whose last event has come
_REDIRECTS = (301, 302, 303, 307, 308)


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


class _Inbox:
    """What arrived on all streams of one event loop since it last parsed: (stream, CLOCK_MONOTONIC ns, bytes; None at the end).

    Parsing in the read callback would stamp the last of 64 ready sockets by 63 parses too late. Holds no reference to its loop,
    whose entry in _INBOXES would then never go.
    """

    def __init__(self) -> None:
        self._mail: list[tuple[Recording, int, bytes | None]] = []

    def put(self, recording: Recording, at_ns: int, data: bytes | None) -> None:
        if not self._mail:
            recording.loop.call_soon(self._deliver)
        self._mail.append((recording, at_ns, data))

    def _deliver(self) -> None:
        mail, self._mail = self._mail, []
        for recording, at_ns, data in mail:
            recording.take(at_ns, data)


_INBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = WeakKeyDictionary()


@dataclass(eq=False)
class Recording(asyncio.Protocol):
    """One connection and what it has brought. `over` is done when nothing more is to be awaited; `error` then says why, or None."""

    deadlines: Deadlines
    listen: Listener | None
    error: str | None = None
    listener_failed: bool = False
    columns: Columns = field(default_factory=lambda: Columns(time.monotonic_ns()))
    end_ns: int | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._inbox = _INBOXES.setdefault(self.loop, _Inbox())
        self.over: asyncio.Future[None] = self.loop.create_future()
        self._response, self._events = Response(), Decoder()
        self._reader = Reader(self.columns, self._told if self.listen else None)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost: Exception | None = None
        self._refusal = b""
        self._body_start = b""

    # --- life ---

    async def connect(self, where: Where) -> None:
        """Raises OSError or TimeoutError, which says how long it was tried."""
        context = ssl.create_default_context() if where.tls else None
        try:
            async with asyncio.timeout(self.deadlines.connect_s):
                await self.loop.create_connection(lambda: self, where.host, where.port, ssl=context)
        except TimeoutError as error:
            raise TimeoutError(f"none within {self.deadlines.connect_s:g} s") from error

    def begin(self, words: bytes) -> None:
        """Send the request; the clock starts here."""
        assert self._transport
        self.columns.begin_ns = time.monotonic_ns()
        self._data_ns = self.columns.begin_ns
        self._transport.write(words)
        self._timer = self.loop.call_later(self.deadlines.first_s, self._check_silence)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._transport:
            self._transport.abort()  # not close(): what the server still has to say must not be waited for
        if self.over.done() and not self.over.cancelled():
            self.over.exception()

    def trace(self, error: str | None) -> Trace:
        trace = self.columns.trace(self.end_ns or time.monotonic_ns(), error)
        if trace.error == NO_FINISH and not trace.kinds and self._body_start:
            return trace.model_copy(update={"error": f"no event stream: the body starts with {self._body_start[:120]!r}"})
        return trace

    # --- callbacks of the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def data_received(self, data: bytes) -> None:
        self._inbox.put(self, time.monotonic_ns(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc
        self._inbox.put(self, time.monotonic_ns(), None)

    def _check_silence(self) -> None:
        """The one timer: due when the silence would be too long, and set anew if there was data meanwhile."""
        seen = bool(self.columns.at_ns)
        limit_s = self.deadlines.stall_s if seen else self.deadlines.first_s
        left_s = limit_s - (time.monotonic_ns() - self._data_ns) / 1e9
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_silence)
        else:
            self._finish(time.monotonic_ns(), f"stalled: no data for {limit_s:g} s after {len(self.columns.at_ns)} chunks")

    # --- what arrived ---

    def take(self, at_ns: int, data: bytes | None) -> None:
        """Parse one read; None: the connection is gone."""
        if self.over.done():
            return
        if self.end_ns is not None:
            self._leave(data)
            return
        try:
            if data is None:
                self._gone(at_ns)
            else:
                self._parse(at_ns, data)
        except ServerFault as fault:
            self._finish(at_ns, f"broken off after {len(self.columns.at_ns)} chunks: the server reports: {fault}")
        except BrokenPipeError as error:
            self._end(error)
        except Exception as error:  # a server may send anything: whatever it breaks here is the end of this trace, not of the run
            self._finish(at_ns, self._broken(error))

    def _parse(self, at_ns: int, data: bytes) -> None:
        READS.reads += 1
        READS.full_reads += len(data) >= _FULL_READ_BYTES
        body = self._response.feed(data)
        if self._response.status not in (None, 200):
            self._refuse(at_ns, body)
            return
        if not self.columns.at_ns and len(self._body_start) < 200:
            self._body_start += body[:200]
        if body:
            self._chunks(at_ns, body)
        if self._response.complete and self.end_ns is None:
            self._complete(at_ns)

    def _chunks(self, at_ns: int, body: bytes) -> None:
        for payload in self._events.feed(body):
            if payload.startswith(b"[DONE]"):
                self._complete(at_ns)
                return
            self._reader.read(at_ns, payload)
            READS.events += 1
            self._data_ns = at_ns
            if self._timer and len(self.columns.at_ns) == 1:  # from the first chunk on the shorter limit holds
                self._timer.cancel()
                self._timer = self.loop.call_later(self.deadlines.stall_s, self._check_silence)

    def _gone(self, at_ns: int) -> None:
        if self._lost is not None:
            raise self._lost
        self._response.end()
        if self._response.status not in (None, 200):
            self._refuse(at_ns, b"")
        else:
            self._complete(at_ns)

    def _refuse(self, at_ns: int, body: bytes) -> None:
        """A status other than 200: gather the message, then end."""
        self._refusal += body
        if self._response.complete or len(self._refusal) > _ERROR_BODY_BYTES:
            self._finish(at_ns, f"HTTP {self._response.status}: {_refusal(self._response, self._refusal)}")

    def _complete(self, at_ns: int) -> None:
        """The stream has ended well. The connection is held until the body's own end has come: closed before, it would be reset,
        and a server might take its finished request for one that was given up."""
        self._reader.finish()
        if self._response.complete or self._lost is not None:
            self._finish(at_ns, None)
        else:
            self.end_ns = at_ns
            self.loop.call_later(_LEAVE_S, self._end, None)

    def _leave(self, data: bytes | None) -> None:
        try:
            self._response.feed(data or b"")
        except BadResponse:
            data = None
        if data is None or self._response.complete:
            self._end(None)

    def _finish(self, at_ns: int, error: str | None) -> None:
        self.error, self.end_ns = error, at_ns
        self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        if self.over.done():
            return
        if failure:
            self.over.set_exception(failure)
        else:
            self.over.set_result(None)

    def _told(self, kind: str, text: str) -> None:
        assert self.listen
        try:
            self.listen(kind, text)
        except BrokenPipeError:
            self.listener_failed = True
            raise

    def _broken(self, error: Exception) -> str:
        return f"broken off after {len(self.columns.at_ns)} chunks: {type(error).__name__}: {str(error)[:200]}"


def _refusal(response: Response, body: bytes) -> str:
    """The message of an OpenAI-shaped error body, else the body's start, else where it redirects to."""
    if response.status in _REDIRECTS:
        return f"redirected to {response.headers.get('location', 'nowhere')}; the benchmark follows no redirect"
    try:
        error = json.loads(body)
        message = error["error"]["message"] if isinstance(error.get("error"), dict) else error.get("message") or error["error"]
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        message = body.decode(errors="replace")
    return str(message)[:200]
