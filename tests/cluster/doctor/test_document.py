"""docs/field-reports.md: every finding, refusal, task and test that it names exists, and no finding is left out."""

import re
from pathlib import Path

import pytest

from cluster.constraints import CONSTRAINTS
from cluster.doctor.examine import KINDS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/field-reports.md").read_text()
RANKED = {int(row[1]): row[0] for row in re.finditer(r"^\| (\d+) \|.*$", TEXT, re.MULTILINE)}


def named(row: str, after: str) -> set[str]:
    """The words in backticks behind `finding:` or `refusal:`, up to the sentence's end."""
    match = re.search(rf"{after}: ((?:`[^`]+`(?:, )?)+)", row)
    return set(re.findall(r"`([^`]+)`", match[1])) if match else set()


def test_all_fifteen_pains() -> None:
    assert sorted(RANKED) == list(range(1, 16))


@pytest.mark.parametrize("number", range(1, 16))
def test_what_a_row_names_exists(number: int) -> None:
    row = RANKED[number]
    assert named(row, "finding") <= set(KINDS)
    assert named(row, "refusal") <= {rule.id for rule in CONSTRAINTS}
    tests = re.findall(r"`(tests/[^`]+)`", row)
    assert tests
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_every_finding_is_in_a_row_or_named_beside_them() -> None:
    rest = TEXT.partition("Entries outside this ranking")[2].partition("## ")[0]
    beside = set(re.findall(r"`([^`]+)`", rest))
    assert beside <= set(KINDS)
    assert set.union(beside, *(named(row, "finding") for row in RANKED.values())) == set(KINDS)


def test_every_finding_is_listed() -> None:
    """That the list is the program's own is tested with all generated documents (tests/cli/test_documents.py)."""
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", TEXT, re.MULTILINE)) == set(KINDS)
