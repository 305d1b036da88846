"""The chunks of one answer are alike but for a text and a few numbers: a pattern made from one that was parsed in full reads the rest.

`learned` splits a chunk's JSON into its tokens and makes of them a pattern in which every key, bracket and word stands as it is, the
one text of the delta and the numbers are free, and so are the words at the top that say nothing about tokens (id, model, ...). JSON
is read token by token, so bytes that match hold the same document but for those values; bytes that do not are parsed in full. A text
must be free of raw control characters, its escapes those of RFC 8259, its numbers short: what JSON refuses does not match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Path = tuple[str | int, ...]
Kind = Literal["c", "k"]
_TOKEN = re.compile(rb'\s*(?:("(?:[^"\\]|\\.)*")|(-?\d[0-9.eE+-]*)|(true|false|null)|([{}\[\]:,]))', re.DOTALL)
_TEXT = rb'([^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*)'
_WORD = rb'"[ !#-\[\]-~]*"'
_NUMBER = rb"-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,17})?"
_COUNT = rb"(0|[1-9][0-9]{0,14})"
_IDS = rb"\[((?:0|[1-9][0-9]{0,14})(?:, ?(?:0|[1-9][0-9]{0,14}))*)\]"
_SIZE = rb"([0-9a-fA-F]{1,8})"
_BEFORE, AFTER = b"\r\ndata: ", b"\n\n\r\n"  # an event alone in its HTTP chunk
MARK, _MARKS = b"\1", (b"\2", b"\3", b"\4", b"\5", b"\6", b"\7")  # bytes that stand in no JSON
_LONG_BYTES = 8
_TELLING = frozenset({"choices", "usage", "timings", "error"})  # members whose words mean something to bench.chunks
_IDS_PATH: Path = ("choices", 0, "token_ids")
_COUNTS: dict[Path, str] = {("usage", "completion_tokens"): "usage", ("timings", "predicted_n"): "timings"}


@dataclass(frozen=True)
class Template:
    """pattern: of one HTTP chunk that holds one SSE event; group 1 is its size, the others as named here (0: not in this shape).

    kind: of every such chunk, whose text is not empty. states_usage: it has a usage, of which the stream's last one counts.
    short: the same pattern for bytes in which all that stands between size and text has been replaced by MARK, and each of `words` by
    the mark beside it: there is far less to match. None where a count stands before the text.
    """

    pattern: re.Pattern[bytes]
    short: re.Pattern[bytes] | None
    words: tuple[tuple[bytes, bytes], ...]
    kind: Kind
    text: int
    usage: int
    timings: int
    token_ids: int
    states_usage: bool


@dataclass(frozen=True)
class _Token:
    """One token of JSON: the bytes from `start` to `end`, and where its value stands; None: it is no value."""

    raw: bytes
    start: int
    end: int
    path: Path | None


def learned(payload: bytes, document: dict[str, Any]) -> tuple[bytes, Template] | None:
    """The pattern's text and the template for chunks like this one, which was parsed to `document`; None where it is not a plain one.

    Plain: choice 0 alone, which brings text or reasoning and nothing else.
    """
    found = _free_text(document)
    if found is None:
        return None
    text_path, kind = found
    tokens = list(_tokens(payload))
    paths = [token.path for token in tokens if token.path is not None]
    if len(set(paths)) < len(paths) or paths.count(text_path) != 1:
        return None  # a name twice in one object: which one counts is the parser's affair
    if not all(token.raw.isdigit() for token in tokens if token.path and len(token.path) > 3 and token.path[:3] == _IDS_PATH):
        return None
    literals, slots, done = [], [], 0
    for start, end, name, pattern in _slots(tokens, text_path):
        literals.append(payload[done:start])
        slots.append((name, pattern))
        done = end
    return _template([*literals, payload[done:]], slots, kind, states_usage=bool(document.get("usage")))


def _template(
    literals: list[bytes], slots: list[tuple[str, bytes]], kind: Literal["c", "k"], *, states_usage: bool
) -> tuple[bytes, Template]:
    """From the bytes before, between and behind the slots."""
    literals = [_BEFORE + literals[0], *literals[1:-1], literals[-1] + AFTER]
    names, patterns = [name for name, _ in slots], [pattern for _, pattern in slots]
    source = b"".join(
        [_SIZE, re.escape(literals[0]), *(slot + re.escape(after) for slot, after in zip(patterns, literals[1:], strict=True))]
    )
    groups = [name for name in names if name]
    at = {name: groups.index(name) + 2 if name in groups else 0 for name in ("text", "usage", "timings", "token_ids")}
    first = names.index("text")
    words, short = _shortened(literals[first + 1 :], patterns[first + 1 :])
    pattern = re.compile(short) if groups[0] == "text" else None
    return source, Template(re.compile(source), pattern, words, kind, states_usage=states_usage, **at)


def _shortened(literals: list[bytes], slots: list[bytes]) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Template.words and the source of Template.short, from what follows the text."""
    words: list[tuple[bytes, bytes]] = []
    short = [_SIZE, MARK, _TEXT]
    for literal, slot in zip(literals, [*slots, b""], strict=True):
        if len(literal) >= _LONG_BYTES and len(words) < len(_MARKS):
            words.append((literal, _MARKS[len(words)]))
            short += [words[-1][1], slot]
        else:
            short += [re.escape(literal), slot]
    return tuple(words), b"".join(short)


def _free_text(document: dict[str, Any]) -> tuple[Path, Kind] | None:
    """Where the text of a plain chunk stands, and its kind."""
    choices = document["choices"]
    if len(choices) != 1 or "error" in document:
        return None
    choice, delta = choices[0], choices[0]["delta"]
    texts = [name for name in ("content", "reasoning", "reasoning_content") if delta.get(name)]
    if len(texts) != 1 or delta.get("tool_calls") or choice.get("finish_reason"):
        return None
    return ("choices", 0, "delta", texts[0]), "c" if texts[0] == "content" else "k"


def _slots(tokens: list[_Token], text_path: Path) -> Iterator[tuple[int, int, str, bytes]]:
    """(start, end, group's name or "", pattern) of everything that may differ, in order."""
    ids = [token for token in tokens if token.path is not None and token.path[:3] == _IDS_PATH]
    for token in tokens:
        path = token.path
        if path is None:
            continue
        if path == text_path:
            yield token.start + 1, token.end - 1, "text", _TEXT
        elif path == _IDS_PATH and len(ids) > 1:  # the opening bracket; the list ends after its last number
            yield token.start, ids[-1].end + 1, "token_ids", _IDS
        elif path in _COUNTS and token.raw.isdigit():
            yield token.start, token.end, _COUNTS[path], _COUNT
        elif token.raw[:1] in b"-0123456789" and _idle(path):
            yield token.start, token.end, "", _NUMBER
        elif token.raw[:1] == b'"' and len(path) == 1 and path[0] not in _TELLING:
            yield token.start, token.end, "", _WORD


def _idle(path: Path) -> bool:
    """No reader of chunks looks at a number here."""
    if path[0] == "choices":
        return len(path) > 3 and path[2] not in ("delta", "token_ids")
    return path not in _COUNTS and (len(path) > 1 or path[0] not in _TELLING)


def _tokens(payload: bytes) -> Iterator[_Token]:
    """Every token of valid JSON; the path of a bracket is that of the object or array which it opens."""
    path: list[str | int] = []
    wants_name: list[bool] = []  # per open bracket: an object before its next name
    for found in _TOKEN.finditer(payload):
        start, end = found.span(found.lastindex or 0)
        raw = found[found.lastindex or 0]
        if raw in (b"}", b"]"):
            path.pop()
            wants_name.pop()
        elif raw == b",":
            if isinstance(path[-1], int):
                path[-1] += 1
            else:
                wants_name[-1] = True
        elif raw == b":":
            wants_name[-1] = False
        elif wants_name and wants_name[-1]:
            path[-1] = raw[1:-1].decode("utf-8", "replace")
        else:
            yield _Token(raw, start, end, tuple(path))
            if raw in (b"{", b"["):
                path.append("" if raw == b"{" else 0)
                wants_name.append(raw == b"{")
            continue
        yield _Token(raw, start, end, None)
