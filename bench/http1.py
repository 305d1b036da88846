"""An HTTP/1.1 response, incrementally: bytes as they come, out of which comes the body. Pure; RFC 9112.

Knows chunked bodies, bodies of a stated length, and bodies that end with the connection; skips 1xx answers and trailers.
"""

from __future__ import annotations

import re
from typing import Literal

MAX_HEAD_BYTES = 64 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: [^\r\n]*)?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_SIZE_LINE_BYTES = 4096
State = Literal["head", "size", "chunk", "chunk end", "trailer", "length", "until close", "done"]


class BadResponse(ValueError):
    """Bytes that are no HTTP/1.1 response."""


class Response:
    """Mutable; one per request. `status` is None and `headers` (names in lower case) are empty until the head is complete."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self._state: State = "head"
        self._buffer = b""
        self._left = 0  # bytes of the chunk or body that are still to come

    @property
    def complete(self) -> bool:
        return self._state == "done"

    @property
    def between_chunks(self) -> bool:
        """A chunked body of which the next byte begins a chunk."""
        return self._state == "size" and not self._buffer

    @property
    def chunked(self) -> bool:
        """The body is chunked, and has not ended."""
        return self._state in ("size", "chunk", "chunk end", "trailer")

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` holds. Raises BadResponse."""
        if self._state == "size" and not self._buffer:
            # What nearly every server sends nearly always: one whole chunk.
            found = _SIZE.match(data)
            if found and found.end() + (size := int(found[1], 16)) + 2 == len(data) and size and data.endswith(b"\r\n"):
                return data[found.end() : -2]
        return b"".join(self._parts(data))

    def end(self) -> None:
        """The peer has closed. Raises BadResponse where more was to come."""
        if self._state == "until close":
            self._state = "done"
        if self._state != "done":
            raise BadResponse("the connection closed " + ("before an answer" if self.status is None else "inside the answer"))

    def _parts(self, data: bytes) -> list[bytes]:
        self._buffer += data
        parts: list[bytes] = []
        while self._buffer and self._step(parts):
            pass
        return parts

    def _step(self, parts: list[bytes]) -> bool:
        """Take one element from the buffer; False if it is not all there yet."""
        if self._state in ("chunk", "length", "until close"):
            return self._body(parts)
        if self._state == "head":
            return self._head()
        if self._state == "size":
            return self._size()
        if self._state == "chunk end":
            return self._chunk_end()
        if self._state == "trailer":
            return self._trailer()
        self._buffer = b""  # after the end: not ours
        return False

    def _body(self, parts: list[bytes]) -> bool:
        if self._state == "until close":
            parts.append(self._buffer)
            self._buffer = b""
            return True
        part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        parts.append(part)
        self._left -= len(part)
        if not self._left:
            self._state = "chunk end" if self._state == "chunk" else "done"
        return True

    def _size(self) -> bool:
        found = _SIZE.match(self._buffer)
        if not found:
            if b"\r\n" in self._buffer or len(self._buffer) > _SIZE_LINE_BYTES:
                raise BadResponse(f"no size of an HTTP chunk: {self._buffer[:40]!r}")
            return False
        self._left = int(found[1], 16)
        self._buffer = self._buffer[found.end() :]
        self._state = "chunk" if self._left else "trailer"
        return True

    def _chunk_end(self) -> bool:
        if not b"\r\n".startswith(self._buffer[:2]):
            raise BadResponse(f"an HTTP chunk longer than its size: {self._buffer[:40]!r}")
        if len(self._buffer) < 2:
            return False
        self._buffer = self._buffer[2:]
        self._state = "size"
        return True

    def _trailer(self) -> bool:
        line, end, rest = self._buffer.partition(b"\r\n")
        if not end:
            self._limit("trailer")
            return False
        self._buffer = rest
        if not line:
            self._state = "done"
        return True

    def _head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            self._limit("head")
            if not b"HTTP/1.".startswith(self._buffer[:7]):
                raise BadResponse(f"no HTTP/1.1 answer: {self._buffer[:40]!r}")
            return False
        first, *lines = head.split(b"\r\n")
        found = _STATUS.fullmatch(first)
        if not found:
            raise BadResponse(f"no HTTP/1.1 status line: {first[:40]!r}")
        self._buffer = rest
        if int(found[1]) >= 200:  # 1xx: the real answer follows
            self.status = int(found[1])
            self.headers = _fields(lines)
            self._frame()
        return True

    def _limit(self, what: str) -> None:
        if len(self._buffer) > MAX_HEAD_BYTES:
            raise BadResponse(f"a {what} of more than {MAX_HEAD_BYTES >> 10} KiB")

    def _frame(self) -> None:
        """How the body ends, RFC 9112 section 6.3."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise BadResponse(f"a body compressed with {self.headers['content-encoding']}, though none was asked for")
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            self._state = "done"
        elif self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._state = "size"
        elif "transfer-encoding" in self.headers or (length and not (length.isascii() and length.isdecimal() and len(length) < 19)):
            raise BadResponse("a body whose end the head does not tell")
        else:
            self._left = int(length or 0)
            self._state = "until close" if not length else "length" if self._left else "done"


def _fields(lines: list[bytes]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():
            raise BadResponse(f"no header field: {line[:40]!r}")
        headers[name.lower()] = value.strip()
    return headers
