"""Chunks that look like an earlier one of any stream, read by their template (bench.template): the same rows as bench.chunks makes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

from bench.columns import Columns
from bench.template import AFTER, MARK, Template, learned

_KNOWN: dict[bytes, Template] = {}  # the shapes that servers of this process have sent, by their pattern
_MOST_KNOWN = 16
_MOST_TRIES = 8  # of one stream to learn its shape: where all differ, learning only costs
_EVENT = len(b"\r\ndata: ")


class Alike:
    """Belongs to one stream. Its methods are to be called between two HTTP chunks only, and after the stream's first event."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._usual: Template | None = None  # what its last chunk looked like
        self._start = b""  # all that stood in it between its size and its text
        self._tries = 0
        self.last_usage: bytes | None = None  # the payload of the last chunk read here that states a usage; None once a later one does

    def learn(self, payload: bytes, document: dict[str, Any]) -> None:
        """A chunk that was read in full: the next ones may look like it."""
        if self._tries >= _MOST_TRIES:
            return
        self._tries += 1
        framed = b"%x\r\ndata: %b%b" % (len(payload) + 8, payload, AFTER)
        for template in tuple(_KNOWN.values()):
            if found := template.pattern.fullmatch(framed):
                self._usual, self._start = template, framed[found.end(1) : found.start(template.text)]
                return
        if shape := learned(payload, document):
            while len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.pop(next(iter(_KNOWN)), None)
            _KNOWN.setdefault(*shape)

    def read(self, at_ns: int, data: bytes) -> int:
        """Record the whole HTTP chunks at the start of `data`, each one event, that look like an earlier one. Returns where they end."""
        done = 0
        known = tuple(_KNOWN.values())  # a loop of another thread may learn meanwhile
        for template in (self._usual, *known) if self._usual else known:
            while found := template.pattern.match(data, done):
                if int(found[1], 16) != found.end() - found.end(1) - 4 or not self._one(at_ns, template, found):
                    return done
                self._usual, self._start = template, data[found.end(1) : found.start(template.text)]
                done = found.end()
            if done == len(data):
                break
        return done

    def _one(self, at_ns: int, template: Template, found: re.Match[bytes]) -> bool:
        """Record one chunk; False: it has to be read in full, for its text is empty or no UTF-8."""
        groups = [[group] for group in found.groups()]
        return self._record(template, groups, [at_ns], found[0][found.end(1) - found.start() :])

    def read_many(self, at_ns: list[int], reads: list[bytes]) -> bool:
        """Record the chunks in these reads, if all are events that look like the last one; False: nothing is recorded."""
        template = self._usual
        data = b"".join(reads)
        if template is None or template.short is None or not data.endswith(AFTER):
            return False
        sizes = [len(chunk) for chunk in data.split(AFTER)]
        short = data.replace(self._start, MARK)
        shorter = len(self._start) - 1
        for word, mark in template.words:
            short = short.replace(word, mark)
            shorter += len(word) - 1
        sizes.pop()  # what follows the last chunk: nothing
        # Each chunk holds each mark once, so this many bytes are gone only if every mark stands for its word: none came from the server.
        if len(data) - len(short) != shorter * len(sizes):
            return False
        # What stands between the matches, and their groups: with nothing between, the chunks are these and no more.
        parts, step = template.short.split(short), template.short.groups + 1
        if len(parts) != step * len(sizes) + 1 or any(parts[::step]):
            return False
        groups = [parts[number::step] for number in range(1, step)]
        if [int(size, 16) + len(size) for size in groups[0]] != sizes:
            return False
        return self._record(template, groups, _times(at_ns, reads, sizes), data[-sizes[-1] - len(AFTER) + len(groups[0][-1]) :])

    def _record(self, template: Template, groups: list[list[bytes]], at_ns: list[int], last: bytes) -> bool:
        """Chunks by the groups of their pattern; `last` is the last one without its size. False: nothing is recorded."""
        texts = groups[template.text - 1]
        if not all(texts):
            return False
        whole = b"".join(texts)
        try:
            plain = whole.isascii() and b"\\" not in whole
            found = [whole.decode()] if plain else [_text(raw) for raw in texts]
        except ValueError:
            return False
        columns = self._columns
        columns.at_ns += at_ns
        columns.kinds += [template.kind] * len(texts)
        columns.tokens += self._counts(template, groups)
        (columns.text if template.kind == "c" else columns.reasoning).extend(found)
        if template.states_usage:
            self.last_usage = last[_EVENT : -len(AFTER)]
        return True

    def _counts(self, template: Template, groups: list[list[bytes]]) -> Iterable[int | None]:
        """The cumulative tokens that each chunk states."""
        columns = self._columns
        usage = [int(count) for count in groups[template.usage - 1]] if template.usage else None
        ids: list[int] | None = None
        if template.token_ids:
            ids = list(itertools.accumulate([raw.count(b",") + 1 for raw in groups[template.token_ids - 1]], initial=columns.ids))[1:]
            columns.ids = ids[-1]
        if usage and columns.counted_by == "usage":
            return usage
        timings = [int(count) for count in groups[template.timings - 1]] if template.timings else None
        nothing = [None] * len(groups[0])
        return list(map(columns.count, usage or nothing, timings or nothing, ids or nothing))


def _text(raw: bytes) -> str:
    """Raises ValueError where it is no UTF-8."""
    text = raw.decode()
    return text if "\\" not in text else str(json.loads(f'"{text}"'))


def _times(at_ns: list[int], reads: list[bytes], sizes: list[int]) -> list[int]:
    """When each chunk had come whole: with the read that holds its last byte."""
    if len(sizes) == len(reads) and all(len(read) == size + len(AFTER) for read, size in zip(reads, sizes, strict=True)):
        return at_ns
    times, ends = [], itertools.accumulate(map(len, reads))
    stamps = iter(zip(ends, at_ns, strict=True))
    end, at = next(stamps)
    for whole in itertools.accumulate([size + len(AFTER) for size in sizes]):
        while end < whole:
            end, at = next(stamps)
        times.append(at)
    return times
