"""One connection of the lean client: each read of it is kept with the time its last byte came, and parsed later.

Parsed at once are the head, the events up to the first chunk, and everything for a listener. After that a read is only kept, until
one comes that may hold the end of the stream or a fault; the reads before it are parsed then, with the times they came at. So what is
parsed, and what comes of it, does not depend on when: only how soon an end is noticed does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field

from bench.arrival import ROOM, arrived_ns, receive, stamped
from bench.chunks import Reader, ServerFault
from bench.columns import NO_FINISH, Columns
from bench.connection import LATER, Sender
from bench.http1 import BadResponse, Response
from bench.hygiene import READS
from bench.reading import DESKS, Desk, unwatch, watch
from bench.request import Deadlines, Listener
from bench.sse import Decoder
from bench.trace import Trace

_READ_BYTES = 64 << 10
_SHORT_BYTES = 96  # no event of a chat completion; perhaps the end of something that was cut
_MANY = 8  # reads, from which on it pays to take them at once
_KEPT_READS = 4096  # of one stream; more are parsed while it runs, so that a long answer does not fill the memory
_ERROR_BODY_BYTES = 64 << 10
_LEAVE_S = 0.25  # longest wait for the end of a body whose last event has come
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(eq=False)
class Recording:
    """One connection and what it has brought. `over` is done when nothing more is to be awaited; `error` then says why, or None."""

    deadlines: Deadlines
    listen: Listener | None
    error: str | None = None
    listener_failed: bool = False
    columns: Columns = field(default_factory=lambda: Columns(time.monotonic_ns()))
    end_ns: int | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._desk = DESKS.setdefault(self.loop, Desk())
        self._ended = False
        self._asked = False  # the desk has been asked to have it parsed
        self.over: asyncio.Future[None] = self.loop.create_future()
        self._response, self._events = Response(), Decoder()
        self._reader = Reader(self.columns, self._told if self.listen else None)
        self._at_ns: list[int] = []  # of each read that is kept
        self._kept: list[bytes] = []  # b"": the connection is gone
        self._at_once = True
        self._alike = False  # the next read may be taken by the shapes of earlier chunks
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost: Exception | None = None
        self._refusal = b""
        self._body_start = b""

    # --- life ---

    def begin(self, sock: socket.socket, words: bytes) -> None:
        """Send the request on an open connection, which is ours from here on; the clock starts here."""
        self._sock, self._receive = sock, receive(sock)
        self._sender = Sender(self.loop, sock)
        watch(self.loop, sock.fileno(), self.read, patient=stamped(sock))
        self.columns.begin_ns = time.monotonic_ns()
        self._data_ns = self._last_ns = self.columns.begin_ns
        self._sender.send(words)
        self._timer = self.loop.call_later(self.deadlines.first_s, self._check_silence)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._sock:
            self._sender.stop()
            unwatch(self.loop, self._sock.fileno())
            self._sock.close()
        if self.over.done() and not self.over.cancelled():
            self.over.exception()

    def trace(self, error: str | None) -> Trace:
        """What there is, everything that was read included."""
        while self.work(len(self._kept)):
            pass
        trace = self.columns.trace(self.end_ns or time.monotonic_ns(), error)
        if trace.error == NO_FINISH and not trace.kinds and self._body_start:
            return trace.model_copy(update={"error": f"no event stream: the body starts with {self._body_start[:120]!r}"})
        return trace

    def _check_silence(self) -> None:
        """The one timer: due when the silence would be too long, and set anew if there was data meanwhile."""
        while self.work(len(self._kept)):
            pass
        if self._ended or self.end_ns is not None:
            return
        seen = bool(self.columns.at_ns)
        limit_s = self.deadlines.stall_s if seen else self.deadlines.first_s
        left_s = limit_s - (time.monotonic_ns() - self._data_ns) / 1e9
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_silence)
        else:
            self._finish(time.monotonic_ns(), f"stalled: no data for {limit_s:g} s after {len(self.columns.at_ns)} chunks")

    # --- reading ---

    def read(self) -> bool:
        """Keep what has arrived, and when. True: it is to be parsed now."""
        try:
            data, told, _, _ = self._receive(_READ_BYTES, ROOM)
        except LATER:
            return False
        except OSError as error:
            self._lost, data, told = error, b"", ()
        at_ns = time.monotonic_ns()
        if told:
            at_ns = arrived_ns(told, self._last_ns, at_ns)
        elif data:
            READS.unstamped += 1
        self._last_ns = at_ns
        self.keep(at_ns, data)
        if not data:
            assert self._sock
            unwatch(self.loop, self._sock.fileno())
        if self._asked or not (
            self._at_once
            or len(data) < _SHORT_BYTES
            or data.endswith(b"\r\n\r\n")  # of HTTP's last chunk
            or data.find(b"[DONE]") >= 0  # `in` takes twice as long: it tries each word as a number first
            or data.find(b'"error"') >= 0
            or len(self._kept) > _KEPT_READS
        ):
            return self._asked
        self._asked = True
        self._desk.want(self)
        return True

    def keep(self, at_ns: int, data: bytes) -> None:
        """One read, to be parsed later; b"": the connection is gone."""
        self._at_ns.append(at_ns)
        self._kept.append(data)

    def work(self, reads: int) -> bool:
        """Parse the next `reads` of what is kept; True: there is more, and it is to be parsed soon."""
        at_ns, kept = self._at_ns[:reads], self._kept[:reads]
        del self._at_ns[:reads], self._kept[:reads]
        known = len(self.columns.at_ns)
        self._take_all(at_ns, kept)
        self._count(kept, known)
        self._asked = bool(self._kept)
        return self._asked

    def _take_all(self, at_ns: list[int], reads: list[bytes]) -> None:
        """Many at once where they are like earlier ones, else each half, else one by one."""
        if self._alike and len(reads) >= _MANY and reads[-1] and self._reader.alike.read_many(at_ns, reads):
            return
        if len(reads) >= _MANY:
            half = len(reads) // 2
            self._take_all(at_ns[:half], reads[:half])
            self._take_all(at_ns[half:], reads[half:])
            return
        for at, data in zip(at_ns, reads, strict=True):
            done = self._reader.alike.read(at, data) if self._alike else 0
            if done < len(data) or not data:
                self.take(at, data[done:])

    def _count(self, reads: list[bytes], known: int) -> None:
        """After a slice: the statistics, and from the first chunk on the shorter limit of silence and reads that are only kept."""
        READS.reads += sum(map(bool, reads))
        READS.full_reads += sum([len(data) >= _READ_BYTES for data in reads])
        events = len(self.columns.at_ns) - known
        if not events:
            return
        READS.events += events
        self._data_ns = self.columns.at_ns[-1]
        if not known:
            self._at_once = self.listen is not None or not self._response.chunked
            if self._timer and not self._ended:
                self._timer.cancel()
                self._timer = self.loop.call_later(self.deadlines.stall_s, self._check_silence)

    # --- what arrived ---

    def take(self, at_ns: int, data: bytes) -> None:
        """Parse one read in full; b"": the connection is gone."""
        self._alike = False
        if self._ended:
            return
        if self.end_ns is not None:
            self._leave(data)
            return
        try:
            if data:
                self._parse(at_ns, data)
            else:
                self._gone(at_ns)
        except ServerFault as fault:
            self._finish(at_ns, f"broken off after {len(self.columns.at_ns)} chunks: the server reports: {fault}")
        except BrokenPipeError as error:
            self._end(error)
        except Exception as error:  # a server may send anything: whatever it breaks here is the end of this trace, not of the run
            self._finish(at_ns, self._broken(error))

    def _parse(self, at_ns: int, data: bytes) -> None:
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
        if self.end_ns is None and self.columns.at_ns and not self.listen:
            self._alike = self._response.between_chunks and self._events.between_events

    def _chunks(self, at_ns: int, body: bytes) -> None:
        for payload in self._events.feed(body):
            if payload.startswith(b"[DONE]"):
                self._complete(at_ns)
                return
            self._reader.read(at_ns, payload)

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

    def _leave(self, data: bytes) -> None:
        try:
            self._response.feed(data)
        except BadResponse:
            data = b""
        if not data or self._response.complete:
            self._end(None)

    def _finish(self, at_ns: int, error: str | None) -> None:
        self.error, self.end_ns = error, at_ns
        self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        if self.over.cancelled():
            return  # interrupted; what had been read by then is still parsed
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
