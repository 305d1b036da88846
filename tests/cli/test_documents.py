"""The generated parts of README.md and docs/ are what the program writes, and the tool that writes them does so."""

import shutil
from pathlib import Path

import pytest

from cli import documents
from cli.documents import COMMAND, PARTS, ROOT, Part


@pytest.mark.parametrize("part", PARTS, ids=[f"{part.file} {part.marker}" for part in PARTS])
def test_a_document_is_as_generated(part: Part) -> None:
    text = (ROOT / part.file).read_text()
    assert part.replaced(text) == text, f"{part.file} is not what the program writes; run: {COMMAND}"


def test_every_table_is_that_of_its_receipts() -> None:
    """The parts above, and the tables whose markers name receipts."""
    assert "<!-- table: " in (ROOT / "README.md").read_text()
    assert documents.stale(write=False) == [], f"run: {COMMAND}"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for file in documents.files():
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_a_changed_part_is_named_and_written_anew(copied: Path) -> None:
    file = copied / "docs/field-reports.md"
    before = file.read_text()
    file.write_text(before.replace("| `memory` | info |", "| `memory` | error |"))
    assert documents.stale(write=False, root=copied) == ["docs/field-reports.md"]
    assert documents.stale(write=True, root=copied) == ["docs/field-reports.md"]
    assert file.read_text() == before
    assert documents.stale(write=False, root=copied) == []


def test_a_changed_table_of_receipts_is_written_anew(copied: Path) -> None:
    readme = copied / "README.md"
    good = readme.read_text()
    readme.write_text(good.replace("| 071e3d28a0c1 |", "| 000000000000 |"))
    assert documents.stale(write=True, root=copied) == ["README.md"]
    assert readme.read_text() == good


@pytest.mark.parametrize("text", ["", "FIRST\n", "LAST\nFIRST\n", "FIRST\nLAST\nFIRST\nLAST\n"])
def test_markers_must_be_there_once_and_in_order(text: str) -> None:
    part = next(each for each in PARTS if each.marker == "findings")
    with pytest.raises(ValueError, match=r"docs/field-reports\.md: needs the line <!-- findings -->"):
        part.replaced(text.replace("FIRST", "<!-- findings -->").replace("LAST", "<!-- /findings -->"))


def test_the_command_tells_by_its_exit_code(copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert documents.main(["--check"]) == 0
    monkeypatch.setattr(documents, "stale", lambda *, write: [] if write else ["docs/x.md"])
    assert documents.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/x.md: not as generated; python -m cli.documents\n"
    assert documents.main([]) == 0
