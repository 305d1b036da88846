"""Columns of a parquet file; the only user of arro3. Rows are read in a process of its own (`python -m ablit.parquet NAMES < FILE`): on a
damaged file the reader panics or aborts, and takes its process with it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BadRequest

TEXT, NUMBER, OTHER = "text", "number", "other"
_ABSENT = 3  # exit code: the package is not there


@dataclass(frozen=True)
class Columns:
    """`count`: of rows. `kinds`: every column of the file in order, and what it holds: text, number (truth values too), or other (lists,
    records, dates, bytes). `values` of the columns asked for. `classes`: the names of a column's numbers, where the Hub's metadata in
    the file has them.
    """

    count: int
    kinds: Mapping[str, str]
    values: Mapping[str, list[object]]
    classes: Mapping[str, tuple[str, ...]]


def read(content: bytes, names: Sequence[str]) -> Columns:
    """The columns `names`, those of kind other left out. Raises ValueError for a damaged file, BadRequest where arro3 is not there."""
    root = Path(__file__).resolve().parent.parent
    env = {**os.environ, "RUST_BACKTRACE": "0"}
    argv = [sys.executable, "-m", "ablit.parquet", json.dumps(list(names))]
    done = subprocess.run(argv, cwd=root, env=env, input=content, capture_output=True)
    if done.returncode == _ABSENT:
        hint = "./lab, which brings .venv up to date, or a file of another form"
        raise BadRequest(f"parquet is read with the package arro3-io, which is not there\ntry: {hint}")
    if done.returncode < 0:
        raise ValueError(f"the parquet reader was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise ValueError(f"the parquet reader ended: {last.partition('value: ')[2] or last}")
    plain = json.loads(done.stdout)
    return Columns(plain["count"], plain["kinds"], plain["values"], {name: tuple(each) for name, each in plain["classes"].items()})


def _kind(is_: Any, type_: Any) -> str:
    """Of an Arrow type; `is_`: arro3's DataType, which has the questions."""
    if is_.is_dictionary(type_):
        return _kind(is_, type_.value_type)
    if is_.is_string(type_) or is_.is_large_string(type_) or is_.is_string_view(type_):
        return TEXT
    return NUMBER if is_.is_integer(type_) or is_.is_floating(type_) or is_.is_boolean(type_) else OTHER


def _classes(metadata: Mapping[str, str]) -> dict[str, list[str]]:
    """Of the features that the Hub's datasets library writes beside the Arrow schema."""
    features = json.loads(metadata.get("huggingface") or "{}").get("info", {}).get("features", {})
    return {name: each["names"] for name, each in features.items() if isinstance(each, dict) and each.get("_type") == "ClassLabel"}


def main(names: Sequence[str]) -> int:
    """The other process: a parquet file on stdin, its columns as JSON on stdout."""
    try:
        from arro3.core import DataType
        from arro3.io import read_parquet
    except ImportError:
        return _ABSENT
    reader = read_parquet(io.BytesIO(sys.stdin.buffer.read()))
    kinds = {name: _kind(DataType, reader.schema.field(name).type) for name in reader.schema.names}
    values: dict[str, list[object]] = {name: [] for name in names if kinds.get(name, OTHER) != OTHER}
    count = 0
    for batch in reader:
        count += batch.num_rows
        for name, column in values.items():
            column += batch.column(name).to_pylist()
    json.dump({"count": count, "kinds": kinds, "values": values, "classes": _classes(reader.schema.metadata_str)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
