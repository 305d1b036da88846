"""The block for a pull request: golden text, what is left out, kits apart; and comparisons computed again from their receipts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.compare import build, check
from bench.compare.verdict import Rules
from bench.errors import InvalidMeasurement
from bench.kinds import pull_request, registry
from bench.receipt import seal, seal_of, write
from bench.sealed import write as write_sealed
from tests.bench.compare.support import ABBA, receipt, written
from tests.bench.samples import run, sample

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "pull-request.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A comparison of four boots each (40.0 to 41.5 against 50.0 to 51.5 tok/s), its receipts, and one receipt of another kit."""
    left = {"A": [40, 40.5, 41, 41.5], "B": [50, 50.5, 51, 51.5]}
    made = [receipt({"A": "stock", "B": "edited"}[c], f"boot{i}", i, [left[c].pop(0)] * 3) for i, c in enumerate(ABBA)]
    written(tmp_path / "receipts", made)
    a, b = [r for r in made if r.arm == "stock"], [r for r in made if r.arm == "edited"]
    found = build.compare(build.Question(a, b, Rules(("prose",), 0.02)))
    fixed = found.model_copy(update={"id": "c0ffee", "created_utc": "2026-11-29T13:00:00+00:00", "tool": a[0].tool})
    write_sealed(build.seal(fixed).model_dump(mode="json"), tmp_path / "comparison.json")
    write(seal(sample(run(0, 30.0), kit="spark2", arm="other")), tmp_path / "single.json")
    return tmp_path


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


def test_golden(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    pile = registry.load([folder / "broken.json", folder / "comparison.json", folder / "single.json"])
    pile.left_out = [line.replace(str(folder), "FOLDER") for line in pile.left_out]
    text = pull_request.block(pile, folder) + "\n"
    assert [each.card.seal in text for each in pile.found if each.card.seal] == [True, True]
    assert re.sub("sha256:[0-9a-f]{64}", "SEAL", text) == GOLDEN.read_text()  # a seal changes with every new field of the schema


def test_what_is_left_out_is_named_counted_and_ends_with_3(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    done = invoke("receipt.markdown", str(folder / "single.json"), str(folder / "broken.json"))
    assert done.returncode == 3
    assert "**Left out (1):**" in done.stdout
    assert "broken.json: not readable as JSON" in done.stdout
    assert "broken.json: not readable as JSON" in done.stderr
    assert invoke("receipt.markdown", str(folder / "single.json")).returncode == 0
    nothing = invoke("receipt.markdown", str(folder / "broken.json"))
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert "no valid receipt among these files" in nothing.stderr


def test_arms_are_named_with_the_settings_that_differ(folder: Path) -> None:
    text = pull_request.block(registry.load(registry.documents(folder / "receipts")), folder)
    assert "Settings that differ:\n\n- kit local, arm edited: SPEC_METHOD=edited\n- kit local, arm stock: SPEC_METHOD=stock\n" in text


def test_a_comparison_follows_from_its_receipts(folder: Path) -> None:
    assert check.check(folder / "comparison.json", folder).verdict == "FASTER in prose"


def test_a_resealed_lie_is_found(folder: Path) -> None:
    plain = json.loads((folder / "comparison.json").read_text())
    plain["endpoints"][0]["change"] = 0.5
    plain["seal"] = seal_of(plain)
    write_sealed(plain, folder / "lie.json")
    with pytest.raises(InvalidMeasurement, match=r"field endpoints\.0\.change: says 0\.5, its receipts give 0\.24"):
        check.check(folder / "lie.json", folder)


def test_a_missing_or_changed_receipt_is_named(folder: Path) -> None:
    (folder / "receipts" / "stock-boot0-prose.json").unlink()
    with pytest.raises(InvalidMeasurement, match="receipt stock-boot0-prose is not there: 1 of 4 are missing"):
        check.check(folder / "comparison.json", folder)
    path = folder / "receipts" / "edited-boot1-prose.json"
    path.write_text(path.read_text().replace('"max_tokens":11', '"max_tokens":12'))
    with pytest.raises(InvalidMeasurement):
        check.check(folder / "comparison.json", folder)


def test_an_edited_comparison(folder: Path) -> None:
    path = folder / "comparison.json"
    path.write_text(path.read_text().replace("FASTER in prose", "FASTER in all"))
    with pytest.raises(InvalidMeasurement, match="field seal"):
        check.check(path, folder)
    path.write_text(json.dumps({"receipt": "spark-lab/comparison/v1"}))
    with pytest.raises(InvalidMeasurement, match="field id: Field required"):
        check.check(path, folder)


def test_the_table_of_comparisons(folder: Path) -> None:
    done = invoke("table", str(folder / "comparison.json"), "--kind", "comparison")
    assert done.returncode == 0
    assert (
        "| 2026-11-29 | local | stock | edited | prose | decode tok/s | 40.8 | 50.8 | 4+4 | +24.5% | +20.5% to +28.7% | FASTER | c0ffee |"
        in (done.stdout)
    )
    none = invoke("table", str(folder / "single.json"), "--kind", "comparison")
    assert none.stdout == "No valid receipt of kind comparison yet.\n"
    assert invoke("table", "--kind", "performence").returncode == 2
