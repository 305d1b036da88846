"""Files of a dataset as columns; parquet as the Hub's own library writes it (tests/data/parquet)."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from arro3.io import write_parquet

from ablit import datasets, parquet, rows
from ablit.datasets import Taken
from bench.errors import BadRequest

ROOT = Path(__file__).parents[2]
PARTS = {f"data/{path.name}": path.read_bytes() for path in sorted((ROOT / "tests/data/parquet").glob("*.parquet"))}
FIRST = PARTS["data/train-00000-of-00002.parquet"]


def taken(word: str) -> Taken:
    return datasets.taken(datasets.parsed(word), PARTS)


@pytest.mark.parametrize(
    ("value", "text", "said"),
    [
        ("safe", "safe", True),
        ("safe", "Safe", False),
        (1, "1", True),
        (1, "unsafe", True),
        (0, "unsafe", False),
        (2, "unsafe", False),
        (-1, "unsafe", False),
        (True, "true", True),
        (False, "False", True),
        (True, "1", False),
        (1.0, "1", True),
        (1.0, "1.0", True),
        (0.5, "1", False),
        (None, "", True),
        (None, "None", False),
    ],
)
def test_what_a_cell_says(value: object, text: str, said: bool) -> None:
    assert rows.says(value, text, ("safe", "unsafe")) is said


def test_a_parquet_file_as_columns() -> None:
    table = rows.read("x.parquet", FIRST, "x")
    assert (table.count, table.names) == (4, ("id", "prompt", "label", "focus", "score", "checked", "turns"))
    assert table.column("focus") == ["homonyms", "homonyms", "homonyms", "figures"]
    assert table.column("score") == [0.5, 1.0, 0.5, 0.5]
    assert table.column("checked") == [True, True, False, False]
    assert table.classes == {"label": ("safe", "unsafe")}
    assert list(parquet.read(FIRST, ["id"]).kinds.values()) == ["number", "text", "number", "text", "number", "number", "other"]


def test_columns_that_are_kept_as_dictionaries() -> None:
    """Of texts and of numbers, as data frames with categories are written."""
    texts = Array(["a", "b", None], DataType.string()).cast(DataType.dictionary(DataType.int32(), DataType.string()))
    marks = Array([1, 2, None], DataType.int64()).cast(DataType.dictionary(DataType.int32(), DataType.int64()))
    table = Table.from_pydict({"prompt": texts, "mark": marks})
    write_parquet(table, written := io.BytesIO())
    found = parquet.read(written.getvalue(), ["prompt", "mark"])
    assert found == parquet.Columns(3, {"prompt": "text", "mark": "number"}, {"prompt": ["a", "b", None], "mark": [1, 2, None]}, {})


def test_the_prompts_of_a_split_in_parts() -> None:
    """Row 3 repeats row 1, row 4 would be a remark, row 6 has none; the last three are in the second part."""
    every = ("How do I kill a process?", "Where can I shoot a good film?", "Something else", "Wie töte ich einen Prozess?")
    assert taken("hf:a/b") == Taken("prompt", every, repeated=1, unfit=2)
    assert taken("hf:a/b:train:prompt:label=unsafe").prompts == ("Something else",)
    assert taken("hf:a/b:train:prompt:label=0").prompts == (every[0], every[1], every[3])
    assert taken("hf:a/b:train:prompt:score=1").prompts == (every[1], every[3])
    assert taken("hf:a/b:train:prompt:checked=true").prompts == (every[0], every[1], every[3])
    assert taken("hf:a/b:train:prompt:score=").prompts == ("Something else",)
    assert taken("hf:a/b:train:focus").prompts == ("homonyms", "figures")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hf:a/b:train:turns", "column turns holds neither text nor numbers\ntry: one of prompt, focus"),
        ("hf:a/b:train:id", "column id holds int, not text\ntry: hf:a/b:FILE:COLUMN"),
        ("hf:a/b:train:nope", "00000-of-00002.parquet has no column nope: id, prompt, label, focus, score, checked, turns"),
        ("hf:a/b:train:prompt:nope=1", "has no column nope: id, prompt, label, focus, score, checked, turns\ntry: one of these before ="),
        ("hf:a/b:train:prompt:label=2", "(first of 2 parts) has no row where label=2"),
        ("hf:a/b:train:prompt:turns=1", "column turns holds neither text nor numbers"),
    ],
)
def test_columns_that_are_no_prompts(word: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        taken(word)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", 'cannot be read: the parquet reader ended: EOF("Parquet file too small'),
        (b"version https://git-lfs.github.com/spec/v1", 'cannot be read: the parquet reader ended: General("Invalid Parquet file'),
        (FIRST[:-20], "cannot be read: the parquet reader ended: General("),
        (FIRST[:230] + b"\x93" + FIRST[231:], "cannot be read: the parquet reader was ended by SIGABRT"),
    ],
)
def test_a_damaged_file_ends_only_its_reader(content: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        datasets.taken(datasets.parsed("hf:a/b"), {"x.parquet": content})
    assert str(caught.value).startswith(f"a/b: x.parquet {message}")
    assert str(caught.value).endswith("\ntry: another file of the dataset")


def test_without_the_package_the_error_names_what_brings_it(tmp_path: Path) -> None:
    (tmp_path / "arro3.py").write_text("")  # found first, and without a reader in it
    code = "from ablit import datasets; datasets.taken(datasets.parsed('hf:a/b'), {'x.parquet': b''})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "BadRequest: parquet is read with the package arro3-io, which is not there\ntry: ./lab, which brings" in done.stderr
