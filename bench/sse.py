"""text/event-stream, incrementally: bytes as they come, out of which come the payloads of whole events. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end in LF, CR LF or CR; an empty line ends an event;
several data lines are joined by LF; comments and fields other than data have no meaning to a chat completion.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\r|\n")
MAX_EVENT_BYTES = 64 << 20


class TooLong(ValueError):
    """An event beyond MAX_EVENT_BYTES: this is no event stream."""


class Decoder:
    """Mutable; one per stream."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # the begun line; joined when its end has come, so that tiny reads stay linear
        self._begun = 0  # bytes in it
        self._data: list[bytes] = []  # the data lines of the begun event
        self._size = 0  # bytes in them
        self._skip_lf = False  # the last byte was CR: an LF that follows belongs to it
        self._first = True

    @property
    def between_events(self) -> bool:
        """The next byte begins an event."""
        return not (self._parts or self._data or self._skip_lf)

    def feed(self, data: bytes) -> list[bytes]:
        """The payload of each event that `data` completes, undecoded. Raises TooLong."""
        # What nearly every server sends nearly always: one event of one data line.
        if (
            self.between_events
            and data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        ):
            self._first = False
            return [data[6:-2]]
        return self._general(data)

    def _general(self, data: bytes) -> list[bytes]:
        if self._skip_lf and data:
            self._skip_lf = False
            data = data[1:] if data.startswith(b"\n") else data
        if b"\n" not in data and b"\r" not in data:
            self._hold(data)
            return []
        lines = _LINE_END.split(b"".join([*self._parts, data]))
        self._skip_lf = data.endswith(b"\r")
        self._parts, self._begun = [], 0
        self._hold(lines.pop())
        found = [self._line(line) for line in lines]
        return [payload for payload in found if payload is not None]

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._begun += len(data)
            self._check()

    def _check(self) -> None:
        if self._begun + self._size > MAX_EVENT_BYTES:
            raise TooLong(f"an event of more than {MAX_EVENT_BYTES >> 20} MiB")

    def _line(self, line: bytes) -> bytes | None:
        """One whole line: the payload if it ends an event that has data."""
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1
            self._check()
        return None

    def _dispatch(self) -> bytes | None:
        if not self._data:
            return None
        payload = b"\n".join(self._data)
        self._data, self._size = [], 0
        return payload or None
