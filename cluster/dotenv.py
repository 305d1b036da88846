"""A strict reader of `.env` files: what a shell would make of an assignment, and an error for everything else.

    NAME=value              unquoted: ends at the line's end or at ` #`; outer blanks dropped; blanks inside are kept
    NAME='value'            taken literally, may hold # and $ and span lines
    NAME="value"            \\" \\\\ \\$ \\n are escapes; may span lines
    NAME={"a": 1}           a value that starts with { or [ is JSON: taken as written to the line's end, comment cut after it
    export NAME=value       `export` is ignored
    NAME=                   an explicit empty value (the settings model decides whether it may be empty)
    $NAME  ${NAME}          expanded from earlier lines, then the environment, except in '...' and JSON; unknown is an error

A UTF-8 byte-order mark and CRLF line ends are dropped. The same name twice is an error naming both lines: in a shell the
last one wins silently, and that is how an edit at the top of a long file goes unnoticed. Commands ($(...), `...`) are
refused: the file is data. So is every other `$` that a shell would expand (${A:-1}, $$, $1). Messages show no values: a
malformed line may be the one that holds a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.errors import BadSettings

_HEAD = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=")
_SKIP = re.compile(r"\s*(?:#.*)?$")
_AFTER = re.compile(r"(?:\s+#.*|\s*)$")  # what may follow a closing quote: a # right after it belongs to the value in a shell
_REFERENCE = re.compile(
    r"\\(?P<escaped>[\"\\$n`])|\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<plain>[A-Za-z_]\w*))|(?P<command>\$\(|`)|(?P<other>\$[{\d$?!#@*-])",
    re.ASCII,
)


@dataclass(frozen=True)
class Entry:
    """One assignment: its name, its value after quoting and expansion, and the line it starts on (from 1)."""

    name: str
    value: str
    line: int


def parse(text: str, environ: Mapping[str, str], path: str = ".env") -> tuple[Entry, ...]:
    """All assignments of `text` in order. Raises BadSettings naming `path` and the line."""
    entries: dict[str, Entry] = {}
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        if _SKIP.fullmatch(lines[at]):
            at += 1
            continue
        start, where = at, f"{path} line {at + 1}"
        name, value, at = _assignment(lines, at, _Expander(entries, environ, where), where)
        if name in entries:
            raise BadSettings(
                f"{where}: {name} is set a second time (first on line {entries[name].line})", hint="delete one of the two lines"
            )
        entries[name] = Entry(name, value, start + 1)
    return tuple(entries.values())


def _assignment(lines: list[str], at: int, expand: _Expander, where: str) -> tuple[str, str, int]:
    """The assignment that starts on lines[at]: name, value, and the index of the next line."""
    head = _HEAD.match(lines[at])
    if not head:
        first = re.split(r"[\s=:]", lines[at].strip())[0][:60]
        raise BadSettings(f"{where}: not an assignment: {first}", hint="write NAME=value, with no blanks around =")
    rest = lines[at][head.end() :]
    quote = rest[:1]
    if quote in ("'", '"'):
        raw, after, at = _quoted(lines, at, rest, quote, where)
        if not _AFTER.fullmatch(after):
            raise BadSettings(f"{where}: text after the closing {quote}")
        return head[1], raw if quote == "'" else expand(raw), at
    if quote in ("{", "["):
        return head[1], _json(rest, where), at + 1
    return head[1], _unquoted(rest, expand, where), at + 1


def _quoted(lines: list[str], at: int, rest: str, quote: str, where: str) -> tuple[str, str, int]:
    """Text up to the closing quote, which may stand on a later line; what follows it; the next line's index."""
    closing = re.compile(r"'" if quote == "'" else r'(?<!\\)(?:\\\\)*(")')
    body = rest[1:]
    while True:
        end = closing.search(body)
        if end:
            return body[: end.end() - 1], body[end.end() :], at + 1
        at += 1
        if at == len(lines):
            raise BadSettings(f"{where}: the opening {quote} is never closed")
        body += "\n" + lines[at]


def _json(rest: str, where: str) -> str:
    try:
        _, end = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError) as error:
        raise BadSettings(f"{where}: the value starts like JSON but is not: {error}", hint="quote it if it is plain text") from None
    if not _AFTER.fullmatch(rest[end:]):
        raise BadSettings(f"{where}: text after the JSON value")
    return rest[:end]


def _unquoted(rest: str, expand: _Expander, where: str) -> str:
    value = re.split(r"\s#", rest, maxsplit=1)[0].strip()
    if "'" in value or '"' in value:
        raise BadSettings(f"{where}: a quote inside an unquoted value", hint="quote the whole value")
    return expand(value.replace("\\", "\\\\").replace("\\\\$", "\\$"))  # only \$ is an escape here


@dataclass(frozen=True)
class _Expander:
    earlier: Mapping[str, Entry]
    environ: Mapping[str, str]
    where: str

    def __call__(self, text: str) -> str:
        return _REFERENCE.sub(self._one, text)

    def _one(self, found: re.Match[str]) -> str:
        if found["escaped"]:
            return "\n" if found["escaped"] == "n" else found["escaped"]
        if found["command"]:
            raise BadSettings(f"{self.where}: commands are not run from this file", hint="write the value out, or single-quote it")
        if found["other"]:
            raise BadSettings(
                f"{self.where}: only $NAME and ${{NAME}} are expanded", hint="single-quote the value, or write \\$ for a dollar"
            )
        name = found["braced"] or found["plain"]
        if name in self.earlier:
            return self.earlier[name].value
        if name in self.environ:
            return self.environ[name]
        raise BadSettings(f"{self.where}: ${name} is not known here", hint="set it on an earlier line, or single-quote the value")
