"""Prompts by dataset: the word, the file, the rows."""

import pytest

from ablit import datasets
from ablit.datasets import Taken, Wanted
from bench.errors import BadRequest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = tuple(f"data/train-0000{part}-of-00003.parquet" for part in range(3))
CSV = b"""id,prompt,label
1,"How do I kill
a process?",safe
2,Where can I shoot a good film?,safe
3,how do i  kill a process?,safe
4,#hashtags: are they useful?,safe
5,Something else,unsafe
6,,safe
"""


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("hf:a/b", Wanted("", "a/b")),
        ("hf:a/b@v1.0", Wanted("", "a/b", "v1.0")),
        ("hf:a/b:data/x.csv", Wanted("", "a/b", None, "data/x.csv")),
        ("hf:a/b-c.d@main:x.csv:prompt", Wanted("", "a/b-c.d", "main", "x.csv", "prompt")),
        ("hf:a/b:x.csv:prompt:label=safe or so", Wanted("", "a/b", None, "x.csv", "prompt", ("label", "safe or so"))),
    ],
)
def test_a_word_and_its_parts(word: str, wanted: Wanted) -> None:
    found = datasets.parsed(word)
    assert found.word == word
    assert (found.repo, found.revision, found.file, found.column, found.only) == (
        wanted.repo,
        wanted.revision,
        wanted.file,
        wanted.column,
        wanted.only,
    )


@pytest.mark.parametrize("word", ["hf:", "hf:b", "hf:a/b/c", "hf:a/b@", "hf:a/b:x.csv:prompt:label", "hf:a/b:x.csv:p:l=1:more"])
def test_words_of_another_form(word: str) -> None:
    with pytest.raises(BadRequest, match="names no dataset\ntry: hf:ORG/NAME"):
        datasets.parsed(word)


def test_the_only_readable_file_is_taken_and_others_must_be_named() -> None:
    asked = datasets.parsed("hf:a/b")
    assert datasets.files_of(asked, ["README.md", "x.csv", "y.bin"]) == ("x.csv",)
    with pytest.raises(BadRequest, match=r"a/b has 2 files that can be read: x.csv, y.jsonl\ntry: hf:a/b:FILE"):
        datasets.files_of(asked, ["y.jsonl", "x.csv"])
    with pytest.raises(BadRequest, match=r"has 0 files that can be read: none of \.csv, .*, \.parquet\ntry"):
        datasets.files_of(asked, ["y.bin"])
    with pytest.raises(BadRequest, match=r"has no file z.csv that can be read: x.csv"):
        datasets.files_of(datasets.parsed("hf:a/b:z.csv"), ["x.csv"])


@pytest.mark.parametrize("word", ["hf:a/b", "hf:a/b:train", "hf:a/b:data/train", f"hf:a/b:{SHARDS[0]}", f"hf:a/b:{SHARDS[2]}"])
def test_the_parts_of_a_split_are_one_set(word: str) -> None:
    assert datasets.files_of(datasets.parsed(word), ["README.md", *reversed(SHARDS)]) == SHARDS
    assert datasets.shown(SHARDS) == "data/train-00000-of-00003.parquet (first of 3 parts)"


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(
        BadRequest, match=r"parts of data/train-00000-of-00003.parquet are not there: data/train-00001-of-00003.parquet\ntry"
    ):
        datasets.files_of(datasets.parsed("hf:a/b:train"), [SHARDS[0], SHARDS[2]])


def test_numbered_parts_are_those_beside() -> None:
    """As on the Hub's branch of converted files, where no name says how many there are."""
    names = ["default/test/0000.parquet", "default/train/0000.parquet", "default/train/0001.parquet", "other/train/0000.parquet"]
    for file in ("default/train", "default/train/0001.parquet"):
        assert datasets.files_of(datasets.parsed(f"hf:a/b:{file}"), names) == ("default/train/0000.parquet", "default/train/0001.parquet")
    assert datasets.files_of(datasets.parsed("hf:a/b:test"), names) == ("default/test/0000.parquet",)
    with pytest.raises(BadRequest) as caught:
        datasets.files_of(datasets.parsed("hf:a/b:train"), names)
    assert "has 2 sets called train: default/train/0000.parquet (first of 2 parts), other/train/0000.parquet\n" in str(caught.value)
    assert datasets.files_of(datasets.parsed("hf:a/b:y/2024.csv"), ["y/2023.csv", "y/2024.csv"]) == ("y/2024.csv",)


def test_a_split_by_its_name() -> None:
    names = ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet", "extra.jsonl"]
    assert datasets.files_of(datasets.parsed("hf:a/b:test"), names) == ("data/test-00000-of-00001.parquet",)
    assert datasets.files_of(datasets.parsed("hf:a/b:extra"), names) == ("extra.jsonl",)
    with pytest.raises(BadRequest, match=r"has no file tes that can be read: data/test-00000-of-00001\.parquet, data/train-"):
        datasets.files_of(datasets.parsed("hf:a/b:tes"), names)


@pytest.mark.parametrize(
    ("word", "files"),
    [
        (f"hf:a/b@{COMMIT}:x.csv", ("x.csv",)),
        (f"hf:a/b@{COMMIT}:{SHARDS[1]}", SHARDS),
        (f"hf:a/b@{COMMIT[:12]}:x.csv", ()),
        ("hf:a/b:x.csv", ()),
        (f"hf:a/b@{COMMIT}", ()),
        (f"hf:a/b@{COMMIT}:train", ()),
        (f"hf:a/b@{COMMIT}:train/0000.parquet", ()),
    ],
)
def test_what_needs_no_list_of_files(word: str, files: tuple[str, ...]) -> None:
    assert datasets.pinned(datasets.parsed(word)) == files


def test_rows_are_single_lines_once_each() -> None:
    """The third row is the first again but for case and blanks; the fourth would be a remark; the sixth is empty."""
    found = datasets.taken(datasets.parsed("hf:a/b"), {"x.csv": CSV})
    assert found == Taken("prompt", ("How do I kill a process?", "Where can I shoot a good film?", "Something else"), repeated=1, unfit=2)
    assert found.left_out == "1 repeated, 2 empty or a remark"
    only = datasets.taken(datasets.parsed("hf:a/b:x.csv:prompt:label=unsafe"), {"x.csv": CSV})
    assert only == Taken("prompt", ("Something else",))
    assert only.left_out == ""


def test_what_was_left_out_is_in_the_prompt_file() -> None:
    asked = datasets.parsed("hf:a/b:x.csv:prompt:label=safe")
    first = datasets.file_text(asked, COMMIT, ["x.csv"], Taken("prompt", ("One.",), 3, 1)).splitlines()[0]
    assert first == f"# dataset a/b at {COMMIT}, file x.csv, column prompt where label=safe; rows left out: 3 repeated, 1 empty or a remark"
    first = datasets.file_text(asked, COMMIT, SHARDS, Taken("prompt", ("One.",))).splitlines()[0]
    assert first.endswith("file data/train-00000-of-00003.parquet (first of 3 parts), column prompt where label=safe")


def test_a_prompt_may_repeat_across_parts() -> None:
    found = datasets.taken(datasets.parsed("hf:a/b"), {"x.jsonl": b'{"text": "one"}', "y.jsonl": b'{"text": "two"}\n{"text": "One"}'})
    assert found == Taken("text", ("one", "two"), repeated=1)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("x.jsonl", b'{"text": "one"}\n\n{"text": "two"}\n'),
        ("x.json", b'[{"text": "one"}, {"text": "two", "more": 1}]'),
        ("x.txt", b"one\r\ntwo\n"),
        ("x.tsv", b"text\tmore\none\t1\ntwo\t2\n"),
        ("x.csv", "\ufefftext\none\ntwo\n".encode()),
    ],
)
def test_every_form(file: str, content: bytes) -> None:
    assert datasets.taken(datasets.parsed("hf:a/b"), {file: content}) == Taken("text", ("one", "two"))


@pytest.mark.parametrize(
    ("word", "file", "content", "message"),
    [
        (
            "hf:a/b",
            "x.csv",
            b"a,b\n1,2\n",
            "x.csv has no column prompt or text or instruction or question: a, b\ntry: hf:a/b:FILE:COLUMN",
        ),
        ("hf:a/b:x.csv:c", "x.csv", b"a,b\n1,2\n", "has no column c: a, b"),
        ("hf:a/b:x.csv:a:c=1", "x.csv", b"a,b\n1,2\n", "has no column c: a, b\ntry: one of these before ="),
        ("hf:a/b:x.csv:a:b=9", "x.csv", b"a,b\n1,2\n", "has no row where b=9"),
        ("hf:a/b", "x.csv", b"", "has no row"),
        ("hf:a/b", "x.csv", b"prompt\n#\n", "has no prompt in column prompt"),
        ("hf:a/b", "x.json", b'{"text": 1}', "cannot be read: it is no list of objects"),
        ("hf:a/b", "x.jsonl", b"{", "cannot be read: "),
        ("hf:a/b", "x.jsonl", b'{"prompt": ["a", "b"]}', "x.jsonl: column prompt holds list, not text\ntry: hf:a/b:FILE:COLUMN"),
        ("hf:a/b", "x.jsonl", b'{"prompt": "a"}\n{"prompt": 0}', "x.jsonl: column prompt holds int, not text"),
        ("hf:a/b", "x.txt", b"\xff", "cannot be read: "),
        ("hf:a/b", "x.csv", b"a,b\n1,2\n1,2,3\n", "cannot be read: line 3 has more fields than the first line names"),
        ("hf:a/b:x.csv:a:c=1", "x.csv", b"a,b\n1,2,3\n", "cannot be read: line 2 has more fields"),
    ],
)
def test_what_cannot_be_taken(word: str, file: str, content: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        datasets.taken(datasets.parsed(word), {file: content})
    assert message in str(caught.value)
