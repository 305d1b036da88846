"""Prompts by dataset, fetched from a Hub that is a real server, and from one that is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablit import prompts, tasks
from ablit.__main__ import Job, held_out
from bench.errors import BadRequest, BenchError
from tests.ablit.test_datasets import CSV
from tests.fakes.hub import Hub
from tests.fakes.snapshot import REVISION
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PARTS = {f"data/{path.name}": path.read_bytes() for path in sorted((ROOT / "tests/data/parquet").glob("*.parquet"))}

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
        left_out = "rows left out: 1 repeated, 2 empty or a remark"
        first = f"# dataset lab/set at {REVISION}, file data/x.csv, column prompt where label=safe; {left_out}"
        assert path.read_text().splitlines()[0] == first
        assert prompts.read(path).texts == ("How do I kill a process?", "Where can I shoot a good film?")
        assert f"2 prompts of data/x.csv, column prompt ({left_out}), kept as" in done.stderr
        whole = Path(fetch(hub, tmp_path, "hf:lab/set").stdout.strip())
        content = whole.read_bytes()
        pinned = fetch(hub, tmp_path, f"hf:lab/set@{REVISION}:data/x.csv", HF_HUB_OFFLINE="1")
        assert pinned.returncode == 0, pinned.stderr  # a commit and a file that are here need no network
        assert "3 prompts of data/x.csv" in pinned.stderr
    assert Path(pinned.stdout.strip()) == whole
    assert whole.read_bytes() == content  # the same prompts, and sha256, however they are named
    assert set(path.parent.iterdir()) == {path, whole}


TASK = "import sys; from invoke.main import program; sys.argv[:1] = 'invoke ablit.evaluate --direction d --held-out'.split(); program.run()"


def refused(hub: Hub, folder: Path, word: str, **more: str) -> str:
    """What `invoke ablit.evaluate` says to a dataset that it does not take: an error, exit code 2."""
    done = fetch(hub, folder, word, TASK, **more)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


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
    with Hub({"x.csv": CSV}, repo="lab/set", kind="datasets").serving() as hub:
        assert message in refused(hub, tmp_path, word, **more)
    assert not (tmp_path / "cache").exists()


def test_a_gated_dataset_names_the_token(tmp_path: Path) -> None:
    with Hub({"x.csv": CSV}, repo="lab/set", kind="datasets", status=403, code="GatedRepo").serving() as hub:
        done = fetch(hub, tmp_path, "hf:lab/set")
    assert "is gated (403)" in done.stderr
    assert "HF_TOKEN" in done.stderr


def test_the_parts_of_a_parquet_split_become_one_prompt_file(tmp_path: Path) -> None:
    word = f"hf:lab/set@{REVISION}:data/train-00001-of-00002.parquet:prompt:label=safe"
    with Hub({**PARTS, "README.md": b"x"}, repo="lab/set", kind="datasets").serving() as hub:
        done = fetch(hub, tmp_path, word)
        assert done.returncode == 0, done.stderr
        assert [path for path in hub.paths() if path.startswith("/api/datasets")] == []  # a full commit and a file: no list was asked for
        named = fetch(hub, tmp_path, "hf:lab/set:train:prompt:label=safe")
    path = Path(done.stdout.strip())
    assert path.name == f"lab--set@{REVISION[:12]}--data--train-00000-of-00002.parquet--prompt--label=safe.txt"
    assert prompts.read(path).texts == ("How do I kill a process?", "Where can I shoot a good film?", "Wie töte ich einen Prozess?")
    assert Path(named.stdout.strip()) == path
    offline = fetch(hub, tmp_path, word)  # nobody listens any more
    assert offline.returncode == 0, offline.stderr
    assert "3 prompts of data/train-00000-of-00002.parquet (first of 2 parts), column prompt" in offline.stderr


def test_a_part_that_the_dataset_lacks(tmp_path: Path) -> None:
    with Hub({"data/train-00000-of-00002.parquet": b"x"}, repo="lab/set", kind="datasets").serving() as hub:
        pinned = refused(hub, tmp_path, f"hf:lab/set@{REVISION}:data/train-00000-of-00002.parquet")
        listed = refused(hub, tmp_path, "hf:lab/set:train")
    assert (
        "the Hub has no dataset lab/set@0123456789ab: data/train-00001-of-00002.parquet (404)".replace("0123456789ab", REVISION[:12])
        in pinned
    )
    assert "parts of data/train-00000-of-00002.parquet are not there: data/train-00001-of-00002.parquet" in listed


def test_a_hub_that_is_not_reached(tmp_path: Path) -> None:
    """One error with what to try; a full commit and a file that are in the cache need no Hub."""
    with Hub({"x.csv": CSV}, repo="lab/set", kind="datasets").serving() as hub:
        assert fetch(hub, tmp_path, f"hf:lab/set@{REVISION}:x.csv").returncode == 0
    hub.url = f"http://127.0.0.1:{free_port()}"
    told = refused(hub, tmp_path, "hf:lab/set@v1:x.csv")
    assert "error: the Hub was not reached: " in told
    assert "try: check the network, a proxy (HTTPS_PROXY) or HF_ENDPOINT" in told
    again = fetch(hub, tmp_path, f"hf:lab/set@{REVISION}:x.csv")
    assert again.returncode == 0, again.stderr
    assert "3 prompts of x.csv" in again.stderr


def test_a_held_out_prompt_of_the_fit_is_refused_when_both_are_datasets(tmp_path: Path) -> None:
    files = {"fit.csv": b"prompt\nOne.\nTwo.\n", "held.csv": b"prompt\nThree.\n two. \n", "apart.csv": b"prompt\nThree.\n"}
    with Hub(files, repo="lab/set", kind="datasets").serving() as hub:
        paths = {name: fetch(hub, tmp_path, f"hf:lab/set:{name}.csv").stdout.strip() for name in ("fit", "held", "apart")}
    flags = {"behaviour": "brief", "positive": paths["fit"], "negative": None, "prompts": None, "other": None}
    first, _ = held_out(Job("points", {**flags, "held_out": paths["apart"]}))
    assert first.texts == ("Three.",)
    with pytest.raises(BadRequest) as caught:
        held_out(Job("points", {**flags, "held_out": paths["held"]}))
    where = f"lab--set@{REVISION[:12]}"
    assert f"{where}--held.csv--prompt.txt: held out, but the direction was fitted on it ({where}--fit.csv--prompt.txt): 'two.'" in str(
        caught.value
    )


def test_a_prompt_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BenchError, match=r"cannot write .*a\.txt: Not a directory\ntry: free disk space, or another XDG_CACHE_HOME"):
        tasks._kept("a.txt", "Explain fog.\n")
