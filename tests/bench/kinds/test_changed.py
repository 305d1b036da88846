"""A change set in a real git repository: its receipts, and kit defaults without evidence."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BadRequest
from bench.kinds import changed
from bench.kinds.changed import Verdict
from bench.receipt import seal, write
from tests.bench.compare.support import receipt
from tests.bench.samples import run, sample

KIT = """# {comment}
name = "{name}"
summary = "{summary}"
nodes = ["head"]

[settings]
SPEC_METHOD = "{spec}"
GPU_MEM_UTIL = 0.85
PORT = {port}
"""


def git(root: Path, *args: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *args], cwd=root, check=True, capture_output=True)


def kit(root: Path, name: str = "local", **values: Any) -> None:
    fields = {"comment": "c", "summary": "s", "spec": "ngram", "port": 8808, **values}
    (root / "kits").mkdir(exist_ok=True)
    (root / "kits" / f"{name}.toml").write_text(KIT.format(name=name, **fields))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose main branch has a kit and a receipt, on a branch that was made from it."""
    git(tmp_path, "init", "-q", "-b", "main")
    kit(tmp_path)
    write(receipt("old", "b0", 1, [40, 50]), tmp_path / "results" / "receipts" / "old.json")
    (tmp_path / ".gitignore").write_text("/results/receipts/invalid/\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "base")
    git(tmp_path, "checkout", "-qb", "change")
    return tmp_path


def judged(root: Path) -> Verdict:
    return changed.judge(changed.since(root, "main"))


def measured(root: Path, settings: dict[str, Any], name: str = "new", **changes: Any) -> None:
    """A valid receipt of kit local with these settings."""
    write(receipt(name, f"b-{name}", 2, [40, 50], system_settings=settings, **changes), root / "results" / "receipts" / f"{name}.json")


def test_nothing_changed(root: Path) -> None:
    assert judged(root) == Verdict((), (), ())


def test_sound_receipts_pass_committed_or_not(root: Path) -> None:
    measured(root, {"spec_method": "none"}, "one")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    measured(root, {"spec_method": "none"}, "two")
    found = judged(root)
    assert [line.rpartition("/")[2] for line in found.good] == [
        "one.json: performance, sound, valid",
        "two.json: performance, sound, valid",
    ]
    assert found.problems == ()


def test_main_going_on_is_no_change_of_ours(root: Path) -> None:
    git(root, "checkout", "-q", "main")
    kit(root, spec="none")
    git(root, "commit", "-qam", "main goes on")
    git(root, "checkout", "-q", "change")
    assert judged(root) == Verdict((), (), ())


def test_an_edited_receipt_fails_and_is_named(root: Path) -> None:
    path = root / "results" / "receipts" / "old.json"
    path.write_text(path.read_text().replace('"arm": "old"', '"arm": "new"'))
    assert "old.json: field seal" in "".join(judged(root).problems)


def test_broken_json_and_a_later_schema_fail(root: Path) -> None:
    (root / "results" / "a.json").write_text("{")
    (root / "results" / "b.json").write_text(json.dumps({"receipt": "spark-lab/comparison/v9"}))
    problems = judged(root).problems
    assert ["not readable as JSON" in problems[0], "does not read" in problems[1], len(problems)] == [True, True, 2]


def test_a_receipt_marked_invalid_belongs_into_its_folder(root: Path) -> None:
    made = seal(sample(run(0), run(1, error="broken off")))
    write(made, root / "results" / "receipts" / "x.json")
    assert "belongs into a folder invalid/" in judged(root).problems[0]
    (root / "results" / "receipts" / "x.json").unlink()
    write(made, root / "results" / "campaigns" / "c" / "invalid" / "x.json")
    assert judged(root).problems == ()


def test_other_json_is_let_alone_and_a_removed_receipt_is_noted(root: Path) -> None:
    (root / "results" / "other.json").write_text("{}")
    (root / "results" / "receipts" / "old.json").unlink()
    assert judged(root) == Verdict((), (), ("results/receipts/old.json: was removed",))


def test_a_changed_default_without_a_receipt_fails(root: Path) -> None:
    kit(root, spec="none")
    assert judged(root).problems == (
        "kits/local.toml: SPEC_METHOD changed from 'ngram' to 'none', "
        "but no valid receipt of kit local in this change was measured with it",
    )


def test_a_receipt_measured_with_the_new_value_is_enough(root: Path) -> None:
    kit(root, spec="none")
    measured(root, {"spec_method": "none"})
    assert judged(root).problems == ()


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"spec_method": "ngram"}, {}),  # measured with the old value
        ({"spec_method": "none"}, {"system_kit": "spark2"}),  # on another kit
        (None, {}),  # of a server that says nothing of its settings
    ],
)
def test_a_receipt_of_something_else_is_not(root: Path, settings: Any, changes: dict[str, Any]) -> None:
    kit(root, spec="none")
    measured(root, settings, **changes)
    assert len(judged(root).problems) == 1


def test_a_receipt_of_before_is_not(root: Path) -> None:
    """old.json was measured with the setting 'old', and is no part of this change."""
    kit(root, spec="old")
    assert len(judged(root).problems) == 1


def test_a_setting_that_goes_back_to_the_general_default(root: Path) -> None:
    path = root / "kits" / "local.toml"
    path.write_text(path.read_text().replace('SPEC_METHOD = "ngram"\n', ""))
    measured(root, {"spec_method": "ngram"})
    assert "SPEC_METHOD changed from 'ngram' to None" in judged(root).problems[0]
    measured(root, {"spec_method": "dflash"})
    assert judged(root).problems == ()


def test_what_receipts_do_not_record_needs_any_receipt_of_the_kit(root: Path) -> None:
    kit(root, port=9000)
    assert len(judged(root).problems) == 1
    measured(root, {"spec_method": "ngram"})
    assert judged(root).problems == ()


def test_words_are_no_defaults(root: Path) -> None:
    kit(root, comment="another", summary="another")
    assert judged(root) == Verdict((), (), ())


def test_a_new_kit_needs_a_receipt_and_a_removed_one_none(root: Path) -> None:
    kit(root, "big")
    assert {line.split()[1] for line in judged(root).problems} == {"SPEC_METHOD", "GPU_MEM_UTIL", "NODES", "PORT"}
    (root / "kits" / "big.toml").unlink()
    (root / "kits" / "local.toml").unlink()
    assert judged(root).problems == ()


def test_an_unknown_revision(root: Path) -> None:
    with pytest.raises(BadRequest, match="merge-base -- no-such HEAD failed"):
        changed.since(root, "no-such")
    with pytest.raises(BadRequest, match="failed"):
        changed.since(root, "--output=x")
