"""Prompts by dataset: the word, the file, the rows; and fetched from a Hub that is a real server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablit import datasets, prompts
from ablit.datasets import Taken, Wanted
from bench.errors import BadRequest
from tests.fakes.hub import Hub
from tests.fakes.snapshot import REVISION

ROOT = Path(__file__).parents[2]
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
    assert datasets.file_of(asked, ["README.md", "x.csv", "y.parquet"]) == "x.csv"
    with pytest.raises(BadRequest, match=r"a/b has 2 files that can be read: x.csv, y.jsonl\ntry: hf:a/b:FILE"):
        datasets.file_of(asked, ["y.jsonl", "x.csv"])
    with pytest.raises(BadRequest, match=r"has 0 files that can be read: none of \.csv, .* \(parquet is not read\)"):
        datasets.file_of(asked, ["y.parquet"])
    with pytest.raises(BadRequest, match=r"has no file z.csv that can be read: x.csv"):
        datasets.file_of(datasets.parsed("hf:a/b:z.csv"), ["x.csv"])


def test_rows_are_single_lines_once_each() -> None:
    """The third row is the first again but for case and blanks; the fourth would be a remark; the sixth is empty."""
    found = datasets.taken(datasets.parsed("hf:a/b"), "x.csv", CSV)
    assert found.column == "prompt"
    assert found.prompts == ("How do I kill a process?", "Where can I shoot a good film?", "Something else")
    only = datasets.taken(datasets.parsed("hf:a/b:x.csv:prompt:label=unsafe"), "x.csv", CSV)
    assert only.prompts == ("Something else",)


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
    assert datasets.taken(datasets.parsed("hf:a/b"), file, content) == Taken("text", ("one", "two"))


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
        ("hf:a/b", "x.txt", b"\xff", "cannot be read: "),
        ("hf:a/b", "x.csv", b"a,b\n1,2\n1,2,3\n", "cannot be read: line 3 has more fields than the first line names"),
        ("hf:a/b:x.csv:a:c=1", "x.csv", b"a,b\n1,2,3\n", "cannot be read: line 2 has more fields"),
    ],
)
def test_what_cannot_be_taken(word: str, file: str, content: bytes, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        datasets.taken(datasets.parsed(word), file, content)
    assert message in str(caught.value)


# --- fetched ---

FETCH = "import sys; from ablit.tasks import prompt_file; print(prompt_file(sys.argv[1], lambda line: print(line, file=sys.stderr)))"


def fetch(hub: Hub, folder: Path, word: str, code: str = FETCH, **more: str) -> subprocess.CompletedProcess[str]:
    homes = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache")}
    env = {**os.environ, **homes, **more}
    return subprocess.run([sys.executable, "-c", code, word], cwd=ROOT, env=env, capture_output=True, text=True)


def test_a_dataset_becomes_a_prompt_file_that_says_where_it_is_from(tmp_path: Path) -> None:
    with Hub({"data/x.csv": CSV, "README.md": b"x"}, repo="lab/set", kind="datasets").serving() as hub:
        word = "hf:lab/set@v1:data/x.csv:prompt:label=safe"
        done = fetch(hub, tmp_path, word)
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.strip())
        assert path == tmp_path / f"cache/spark-lab/prompts/lab--set@{REVISION[:12]}--data--x.csv--prompt--label=safe.txt"
        first = f"# dataset lab/set at {REVISION}, file data/x.csv, column prompt where label=safe"
        assert path.read_text().splitlines()[0] == first
        assert prompts.read(path).texts == ("How do I kill a process?", "Where can I shoot a good film?")
        assert "2 prompts of data/x.csv, column prompt" in done.stderr
        whole = Path(fetch(hub, tmp_path, "hf:lab/set").stdout.strip())
        content = whole.read_bytes()
        pinned = fetch(hub, tmp_path, f"hf:lab/set@{REVISION}:data/x.csv", HF_HUB_OFFLINE="1")
        assert pinned.returncode == 0, pinned.stderr  # a commit and a file that are here need no network
        assert "3 prompts of data/x.csv" in pinned.stderr
    assert Path(pinned.stdout.strip()) == whole
    assert whole.read_bytes() == content  # the same prompts, and sha256, however they are named
    assert set(path.parent.iterdir()) == {path, whole}


@pytest.mark.parametrize(
    ("word", "more", "message"),
    [
        ("hf:lab/other", {}, "lab/other"),
        ("hf:lab/set@nowhere", {}, "dataset lab/set@nowhere has no such revision"),
        ("hf:lab/set:no.csv", {}, "has no file no.csv"),
        ("hf:lab/set", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE=1: the Hub is not asked"),
        ("hf:set", {}, "names no dataset"),
    ],
)
def test_what_is_refused_before_anything_runs(tmp_path: Path, word: str, more: dict[str, str], message: str) -> None:
    task = "import sys; from invoke.main import program; sys.argv[:1] = ['invoke', 'ablit.evaluate', '--direction', 'd', '--held-out']"
    with Hub({"x.csv": CSV}, repo="lab/set", kind="datasets").serving() as hub:
        done = fetch(hub, tmp_path, word, f"{task}; program.run()", **more)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_gated_dataset_names_the_token(tmp_path: Path) -> None:
    with Hub({"x.csv": CSV}, repo="lab/set", kind="datasets", status=403, code="GatedRepo").serving() as hub:
        done = fetch(hub, tmp_path, "hf:lab/set")
    assert "is gated (403)" in done.stderr
    assert "HF_TOKEN" in done.stderr
