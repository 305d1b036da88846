"""Receipts that earlier versions of this tool wrote stay readable; tests/data/old_receipts holds real ones.

first-*: from before runs knew their place in a round, and before the command of the server was recorded. In first-structured the
positions of a drafter that had nothing accepted were left out of the summary, which today's rule fills with zeros.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.check import check
from bench.errors import InvalidMeasurement
from bench.kinds import migrate
from bench.receipt import read, seal_of, write

ROOT = Path(__file__).parents[3]
OLD = ROOT / "tests" / "data" / "old_receipts"
CHANGED = OLD / "first-structured-4ac38ad52017.json"


@pytest.mark.parametrize("name", ["first-prose-db27cd49da79", "second-prose-70c74b3fa56e"])
def test_old_ones_stay_sound_as_they_are(name: str) -> None:
    plain = json.loads((OLD / f"{name}.json").read_text())
    assert "rounds" not in plain
    assert "place" not in plain["runs"][0]
    assert check(OLD / f"{name}.json").valid
    assert migrate.migrated(OLD / f"{name}.json") is None


def test_a_figure_of_an_older_rule_is_computed_anew_and_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidMeasurement, match=r"summary\.acceptance\.per_position: says \[\], the raw facts give \[0\.0"):
        check(CHANGED)
    old, new = json.loads(CHANGED.read_text()), migrate.migrated(CHANGED)
    assert new is not None
    assert new.migrated is not None
    assert (new.migrated.from_seal, new.migrated.changed) == (old["seal"], ("summary.acceptance",))
    assert new.id == old["id"]
    assert [run.trace.model_dump(mode="json")["t_s"] for run in new.runs] == [run["trace"]["t_s"] for run in old["runs"]]
    write(new, tmp_path / "new.json")
    assert check(tmp_path / "new.json").valid
    assert migrate.migrated(tmp_path / "new.json") is None


def test_an_edited_original_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "edited.json"
    path.write_text(CHANGED.read_text().replace('"arm": "default"', '"arm": "other"'))
    with pytest.raises(InvalidMeasurement, match="field seal"):
        migrate.migrated(path)


def test_a_migrated_receipt_cannot_hide_its_origin(tmp_path: Path) -> None:
    new = migrate.migrated(CHANGED)
    assert new is not None
    plain = new.model_dump(mode="json")
    assert seal_of({**plain, "migrated": None}) != new.seal


def test_the_task(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "invoke", "receipt.migrate", str(OLD), "--out", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("follows the present rules already") == 2
    assert "changed summary.acceptance" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [CHANGED.name]
    assert read(tmp_path / CHANGED.name).migrated


def test_what_is_no_performance_receipt(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"receipt": "spark-lab/receipt/v0"}))
    with pytest.raises(InvalidMeasurement, match=r"is 'spark-lab/receipt/v0', this tool reads"):
        migrate.migrated(tmp_path / "x.json")
