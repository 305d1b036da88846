"""Kinds of receipts in one folder, and the tables that take them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import grid
from bench.errors import InvalidMeasurement
from bench.grid import Grid
from bench.kinds import registry
from bench.receipt import seal, write
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[3]


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good receipt, an invalid one, a changed one, broken JSON, one of a later schema, and JSON that is no receipt."""
    write(seal(sample()), tmp_path / "a-good.json")
    write(seal(sample(run(0), run(1, error="broken off"))), tmp_path / "b-marked.json")
    write(seal(sample(arm="x")), tmp_path / "c-changed.json")
    (tmp_path / "c-changed.json").write_text((tmp_path / "c-changed.json").read_text().replace('"arm": "x"', '"arm": "y"'))
    (tmp_path / "d-broken.json").write_text("{")
    (tmp_path / "e-later.json").write_text(json.dumps({"receipt": "spark-lab/receipt/v2"}))
    (tmp_path / "f-other.json").write_text(json.dumps({"command": "something"}))
    (tmp_path / "invalid").mkdir()
    (tmp_path / "invalid" / "g.json").write_text("{")
    return tmp_path


def test_broken_ones_among_good_ones_are_named_and_counted(folder: Path) -> None:
    pile = registry.load(registry.documents(folder))
    assert [each.path.name for each in pile.found] == ["a-good.json"]
    left = "\n".join(pile.left_out)
    assert len(pile.left_out) == 4
    assert "b-marked.json: marked invalid: run 1: broken off" in left
    assert "c-changed.json: field seal: does not fit" in left
    assert "d-broken.json: not readable as JSON" in left
    assert "e-later.json: field receipt: is 'spark-lab/receipt/v2', which this version does not read" in left


def test_only_the_kinds_asked_for_are_read(folder: Path) -> None:
    pile = registry.load([folder / "a-good.json", folder / "c-changed.json"], ["comparison"])
    assert (pile.found, pile.left_out) == ([], [])


def test_every_kind_names_functions_that_exist() -> None:
    for kind in registry.KINDS:
        assert all(callable(registry.call(name)) for name in (kind.check, kind.card, kind.table, kind.block))
    assert len({kind.schema for kind in registry.KINDS}) == len(registry.KINDS)


def test_check_takes_a_folder_of_all_kinds(folder: Path) -> None:
    done = invoke("receipt.check", str(folder))
    assert done.returncode == 3
    assert "a-good.json: sound, valid" in done.stdout
    assert "b-marked.json: sound, marked invalid" in done.stdout
    assert done.stderr.count("error:") == 3
    assert "f-other.json" not in done.stdout + done.stderr


def test_a_foreign_schema_name_is_no_receipt(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"receipt": "other/thing"}))
    assert registry.kind_of(path) is None
    path.write_text("[]")
    assert registry.kind_of(path) is None
    with pytest.raises(InvalidMeasurement, match="not readable as JSON"):
        registry.kind_of(tmp_path / "absent.json")


GRID = Grid(("name", "tok/s"), (("a|b_<c>", "45.0 (40.0-50.0)"), ("50 % & more", "-")), "Title & more")


def test_markdown() -> None:
    assert grid.markdown(GRID).splitlines() == [
        "| name | tok/s |", "| --- | --- |", "| a\\|b_<c> | 45.0 (40.0-50.0) |", "| 50 % & more | - |",
    ]  # fmt: skip


def test_html_escapes_and_marks_figures() -> None:
    text = grid.html(GRID)
    assert "<caption>Title &amp; more</caption>" in text
    assert '<th scope="col">name</th><th scope="col" class="n">tok/s</th>' in text
    assert '<tr><td>a|b_&lt;c&gt;</td><td class="n">45.0 (40.0-50.0)</td></tr>' in text


def test_latex() -> None:
    assert grid.latex(GRID).splitlines() == [
        r"\begin{tabular}{lr}", r"\hline", r"name & tok/s \\", r"\hline",
        r"a|b\_<c> & 45.0 (40.0-50.0) \\", r"50 \% \& more & - \\", r"\hline", r"\end{tabular}",
    ]  # fmt: skip
