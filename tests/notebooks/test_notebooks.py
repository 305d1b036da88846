"""The notebooks: stripped of output, executed on a fresh clone with the committed receipts alone, exported, a failing cell named."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench import notebook
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.grid import Grid
from bench.kinds.registry import Pile
from bench.notebook import Which
from bench.receipt import Slot, seal, write
from cli import notebooks
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # kernels start slowly on a busy machine
FILES = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["01-performance", "02-kld", "03-ablation", "04-tuning"]


def test_there_are_four() -> None:
    assert [path.stem for path in FILES] == NAMES


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_output_is_committed(path: Path) -> None:
    plain = json.loads(path.read_text())
    code = [cell for cell in plain["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert plain["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in plain["metadata"]
    assert all(len("".join(cell["source"]).splitlines()) <= 14 for cell in code)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone of the working tree would hold: the tracked files and the new ones that are not ignored."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def exported(clone: Path) -> Path:
    """The HTML of all notebooks, executed in the clone without a server and with an empty home."""
    home = clone / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    env.pop("SPARK_LAB_RUN", None)
    done = subprocess.run([sys.executable, "-m", "invoke", "notebooks"], cwd=clone, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return clone / "results" / "notebooks"


def test_all_are_exported_with_their_figures(exported: Path) -> None:
    assert sorted(path.stem for path in exported.iterdir()) == NAMES
    pictures = {path.stem: path.read_text().count("<picture>") for path in exported.iterdir()}
    assert pictures["02-kld"] == 2
    assert ("<p>no point</p>" in (exported / "03-ablation.html").read_text()) == (pictures["03-ablation"] == 0)
    assert pictures["01-performance"] >= 4
    assert pictures["04-tuning"] == 3
    assert "verdict:" in (exported / "04-tuning.html").read_text()
    assert "left out:" not in (exported / "01-performance.html").read_text()


def test_the_pages_ask_nothing_of_the_network(exported: Path) -> None:
    for path in exported.iterdir():
        text = path.read_text()
        assert "<script" not in text
        assert not re.search(r"""(src|href)=["']https?:|url\(["']?https?:|@import""", text)


def test_nothing_of_the_clone_is_changed(exported: Path, clone: Path) -> None:
    for path in FILES:
        assert (clone / "notebooks" / path.name).read_text() == path.read_text()


def made(folder: Path, *sources: str) -> Path:
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"c{n}", "source": text, "outputs": [], "execution_count": None, "metadata": {}}
        for n, text in enumerate(sources)
    ]
    path = folder / "broken.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_a_failing_cell_is_named(tmp_path: Path) -> None:
    path = made(tmp_path, "x = 1", "# divide\ny = x / 0", "z = 2")
    argv = [sys.executable, "-m", "invoke", "notebooks", str(path), "02", "--out", str(tmp_path / "out")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "error: broken.ipynb: cell 2 failed: # divide" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["02-kld.html"]  # the next one was still made


def test_no_notebook(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("{")
    with pytest.raises(notebooks.NotebookFailed, match=r"x\.ipynb is no notebook"):
        notebooks.execute(tmp_path / "x.ipynb")
    done = subprocess.run([sys.executable, "-m", "invoke", "notebooks", "99"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, "no notebook '99'; there are 01-performance.ipynb" in done.stderr) == (2, True)


def test_jupyter_opens_on_the_right_folder_and_kernel(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "JUPYTER_TOKEN": "t"}
    argv = [sys.executable, "-m", "invoke", "jupyter", "--no-browser", "--port", "18931"]
    process = subprocess.Popen([*argv], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = next(line for line in process.stdout or () if "http://localhost:" in line or "http://127.0.0.1:" in line)
        port = re.findall(r":(\d+)/", address)[0]
        held = _asked(f"http://127.0.0.1:{port}/api/contents/notebooks?token=t")
        assert {f"{name}.ipynb" for name in NAMES} <= {each["name"] for each in held["content"]}
        kernels = _asked(f"http://127.0.0.1:{port}/api/kernelspecs?token=t")
        assert kernels["default"] == "python3"
        folder = kernels["kernelspecs"]["python3"]["resources"]
        assert folder is not None
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _asked(url: str) -> Any:
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.loads(answer.read())
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {url}")


def test_receipts_are_counted_and_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(seal(sample(arm="x")), tmp_path / "a.json")
    write(seal(sample(run(0, 30.0), phase="code", kit="spark2")), tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{")
    pile = notebook.pile("performance", results=tmp_path)
    said = capsys.readouterr().out
    assert "2 receipts, 1 left out" in said
    assert "c.json: not readable" in said
    receipts = [each.document for each in pile.of("performance")]
    assert [r.arm for r in notebook.choose(receipts, Which(kit="local"))] == ["x"]
    assert [r.system.kit for r in notebook.choose(receipts, Which(phase="code", lanes=1))] == ["spark2"]
    assert [r.system.kit for r in notebook.choose(receipts, Which(arm="x"))] == ["local"]
    assert notebook.choose(receipts, Which(since="2027")) == []
    planned = [r.model_copy(update={"plan": Slot(plan="sha256:" + "0" * 64, slot=0, attempt=1)}) for r in receipts]
    assert notebook.choose(planned, Which()) == planned
    assert notebook.choose([planned[0], receipts[1]], Which(planned=False)) == [receipts[1]]


def test_nothing_shows_as_nothing() -> None:
    assert notebook.show(Grid(("a",), ())).text == "nothing yet"
    assert notebook.tables(Pile(), "no-such-kind").text == "nothing yet"


def test_commands_fail_loudly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"invoke receipt\.check /no/such ended with 2"):
        notebook.invoke("receipt.check", "/no/such")
    assert "no such receipt" in capsys.readouterr().out
    with pytest.raises(BadRequest, match="no finished plan of kit local"):
        notebook.newest_campaign("local", tmp_path)


def test_an_unfilled_plan_has_no_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    notebook.invoke("bench-plan", "--arms", "a,b", "--set", "b:SPEC_METHOD=none", "--out", folder)
    with pytest.raises(InvalidMeasurement, match="no slot is filled yet"):
        notebook.verdict(folder)
