"""Prompts from a dataset of the Hugging Face Hub: which one is meant, and its rows as a prompt file. Pure; ablit/tasks.py fetches.

    hf:ORG/NAME[@REVISION][:FILE[:COLUMN[:OTHER=VALUE]]]

FILE is a .csv, .tsv, .jsonl, .json or .txt of the dataset, COLUMN the one that holds the prompts, and OTHER=VALUE keeps only the rows whose
column OTHER says VALUE.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablit.prompts import normal
from bench.errors import BadRequest

PREFIX = "hf:"
COLUMNS = ("prompt", "text", "instruction", "question")  # taken when no column is named, the first that is there
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".txt")
_WORD = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?::([^:]+))?(?::([^:=]+))?(?::([^:=]+)=([^:]*))?")


@dataclass(frozen=True)
class Wanted:
    """A parsed word. `only`: column and value of the rows to keep."""

    word: str
    repo: str
    revision: str | None = None
    file: str | None = None
    column: str | None = None
    only: tuple[str, str] | None = None


def parsed(word: str) -> Wanted:
    """Raises BadRequest for a word of another form."""
    match = _WORD.fullmatch(word)
    if not match:
        raise BadRequest(f"{word!r} names no dataset\ntry: hf:ORG/NAME@REVISION:FILE.csv:COLUMN, with :OTHER=VALUE for some of the rows")
    repo, revision, file, column, name, value = match.groups()
    return Wanted(word, repo, revision, file, column, (name, value) if name else None)


def file_of(wanted: Wanted, names: Sequence[str]) -> str:
    """The wanted file among the dataset's. Raises BadRequest: it is not there, or none is named and there is not exactly one."""
    readable = sorted(name for name in names if name.endswith(ENDINGS))
    if wanted.file in readable:
        return wanted.file
    if wanted.file is None and len(readable) == 1:
        return readable[0]
    what = f"has no file {wanted.file} that can be read" if wanted.file else f"has {len(readable)} files that can be read"
    there = ", ".join(readable[:20]) or f"none of {', '.join(ENDINGS)} (parquet is not read)"
    raise BadRequest(f"dataset {wanted.repo} {what}: {there}\ntry: hf:{wanted.repo}:FILE")


@dataclass(frozen=True)
class Taken:
    """What a file of a dataset gave: the prompts in order, and the column that holds them."""

    column: str
    prompts: tuple[str, ...]


def taken(wanted: Wanted, file: str, content: bytes) -> Taken:
    """Each prompt on one line, the first of several alike. Raises BadRequest naming the file, and its columns where the wanted one is
    not there."""
    where = f"{wanted.repo}: {file}"
    try:
        rows = _rows(file, content.decode("utf-8-sig"))
    except (ValueError, csv.Error) as error:
        raise BadRequest(f"{where} cannot be read: {error}\ntry: another file of the dataset") from None
    if wanted.only:
        name, value = wanted.only
        if rows and name not in rows[0]:
            raise BadRequest(f"{where} has no column {name}: {', '.join(rows[0])}\ntry: one of these before =")
        rows = [row for row in rows if str(row.get(name)) == value]
    column = _column(wanted, rows, where)
    found: dict[str, str] = {}
    for row in rows:
        line = " ".join(str(row.get(column) or "").split())
        if line and not line.startswith("#"):  # which is a remark in a prompt file
            found.setdefault(normal(line), line)
    if not found:
        raise BadRequest(f"{where} has no prompt in column {column}{_which(wanted)}")
    return Taken(column, tuple(found.values()))


def _which(wanted: Wanted) -> str:
    return f" where {'='.join(wanted.only)}" if wanted.only else ""


def _rows(file: str, text: str) -> list[dict[str, object]]:
    if file.endswith((".csv", ".tsv")):
        return _table(text, "\t" if file.endswith(".tsv") else ",")
    if file.endswith(".txt"):
        return [{"text": line} for line in text.splitlines()]
    rows = json.loads(text) if file.endswith(".json") else [json.loads(line) for line in text.splitlines() if line.strip()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it is no list of objects")
    return rows


def _table(text: str, delimiter: str) -> list[dict[str, object]]:
    """Raises ValueError for a row with more fields than the first line names: which one is the prompt cannot be told."""
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True)
    rows: list[dict[str, object]] = []
    for row in reader:
        if None in row:
            raise ValueError(f"line {reader.line_num} has more fields than the first line names")
        rows.append(dict(row))
    return rows


def _column(wanted: Wanted, rows: Sequence[Mapping[str, object]], where: str) -> str:
    if not rows:
        raise BadRequest(f"{where} has no row{_which(wanted)}")
    names = list(rows[0])
    column = wanted.column or next((name for name in COLUMNS if name in names), names[0] if len(names) == 1 else None)
    if column not in names:
        raise BadRequest(f"{where} has no column {column or ' or '.join(COLUMNS)}: {', '.join(names)}\ntry: hf:{wanted.repo}:FILE:COLUMN")
    return column


def file_name(wanted: Wanted, commit: str, file: str, column: str) -> str:
    """What the prompt file is called: dataset, commit, and what was taken of it."""
    parts = [f"{wanted.repo}@{commit[:12]}", file, column, *(["=".join(wanted.only)] if wanted.only else [])]
    return re.sub(r"[^\w.@=-]+", "--", ":".join(parts)) + ".txt"


def file_text(wanted: Wanted, commit: str, file: str, found: Taken) -> str:
    """A prompt file (ablit/prompts.py) that says where it is from: the same bytes however the dataset was named."""
    return "\n".join([f"# dataset {wanted.repo} at {commit}, file {file}, column {found.column}{_which(wanted)}", *found.prompts]) + "\n"
