"""Tables in the documents come from committed receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import InvalidMeasurement
from bench.kinds import readme
from bench.receipt import seal, write
from tests.bench.samples import sample


@pytest.mark.parametrize("path", readme.documents(), ids=lambda path: path.name)
def test_every_table_is_that_of_its_receipts(path: Path) -> None:
    text = path.read_text()
    assert readme.renewed(text) == text


def test_the_readme_has_one() -> None:
    assert "<!-- table: " in readme.documents()[0].read_text()


def test_a_stale_table_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    write(seal(sample()), tmp_path / "receipts" / "a.json")
    text = "before\n\n<!-- table: a.json -->\n| old |\n| --- |\n\nafter | text\n"
    new = readme.renewed(text, tmp_path)
    assert new.startswith("before\n\n<!-- table: a.json -->\n| date | kit |")
    assert new.endswith("| 0123456789ab |\n\nafter | text\n")
    assert "| old |" not in new
    assert readme.renewed(new, tmp_path) == new
    assert readme.renewed(text.replace("table: a.json", "table performance: receipts/*.json"), tmp_path).count("0123456789ab") == 1


def test_a_table_cannot_be_made_of_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts" / "bad.json").write_text("{")
    for marker, said in (
        ("<!-- table: none.json -->\n", r"no receipt none\.json"),
        ("<!-- table: bad.json -->\n", r"bad\.json: not readable"),
        ("<!-- table nothing: bad.json -->\n", "no such kind"),
    ):
        with pytest.raises(InvalidMeasurement, match=said):
            readme.renewed(marker, tmp_path)
