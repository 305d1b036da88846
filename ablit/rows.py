"""A file of a dataset as columns, whatever its form: csv, tsv, jsonl, json, txt or parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ablit import parquet
from bench.errors import BadRequest


@dataclass(frozen=True)
class Table:
    """`count`: of rows; `names`: of its columns; `column`: the values of one; `classes`: a column's classes by number."""

    count: int
    names: tuple[str, ...]
    column: Callable[[str], Sequence[object]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read(file: str, content: bytes, where: str) -> Table:
    """Raises BadRequest that begins with `where`."""
    try:
        return _parquet(content, where) if file.endswith(".parquet") else _plain(_rows(file, content.decode("utf-8-sig")))
    except (ValueError, csv.Error) as error:
        raise BadRequest(f"{where} cannot be read: {error}\ntry: another file of the dataset") from None


def says(value: object, text: str, classes: Sequence[str] = ()) -> bool:
    """Whether a cell says `text`: itself, a class by its number or its name, a truth value in either case, nothing as an empty text."""
    if isinstance(value, bool):
        return str(value).casefold() == text.casefold()
    if isinstance(value, float):
        return f"{value:g}" == text or str(value) == text
    if isinstance(value, int) and 0 <= value < len(classes) and classes[value] == text:
        return True
    return ("" if value is None else str(value)) == text


def _plain(rows: Sequence[Mapping[str, object]]) -> Table:
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(len(rows), names, lambda name: [row.get(name) for row in rows])


def _parquet(content: bytes, where: str) -> Table:
    about = parquet.read(content, ())

    def column(name: str) -> Sequence[object]:
        if about.kinds[name] == parquet.OTHER:
            plain = [each for each, kind in about.kinds.items() if kind == parquet.TEXT]
            raise BadRequest(f"{where}: column {name} holds neither text nor numbers\ntry: one of {', '.join(plain) or 'another file'}")
        return parquet.read(content, [name]).values[name]

    return Table(about.count, tuple(about.kinds), column, about.classes)


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
