"""The tables of the documents are those of the committed receipts, and the command that writes them."""

from pathlib import Path

import pytest

from bench import tables
from bench.errors import BenchError
from bench.tables import PLACES, ROOT, filled, stale


def test_every_table_is_that_of_its_receipt() -> None:
    assert stale(ROOT, write=False) == []


def test_a_table_is_put_between_its_marks_only() -> None:
    text = "a\n<!-- x -->\nold\nolder\n<!-- /x -->\nb\n<!-- x y -->\nkept\n<!-- /x y -->\n"
    assert filled(text, "x", "new \\1") == "a\n<!-- x -->\nnew \\1\n<!-- /x -->\nb\n<!-- x y -->\nkept\n<!-- /x y -->\n"


@pytest.mark.parametrize("text", ["", "<!-- x -->\n", "<!-- x -->\na\n<!-- /x -->\n<!-- x -->\na\n<!-- /x -->\n"])
def test_marks_that_are_not_one_pair_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has not one pair of marks <!-- x -->"):
        filled(text, "x", "new")


def copied(tmp_path: Path) -> Path:
    for name in {place.document for place in PLACES} | {place.receipt for place in PLACES}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def test_a_stale_table_is_named_and_written(tmp_path: Path) -> None:
    root = copied(tmp_path)
    readme = root / "README.md"
    good = readme.read_text()
    readme.write_text(good.replace("| lean | 64 |", "| lean | 65 |"))
    assert stale(root, write=False) == ["README.md: accuracy"]
    assert readme.read_text() != good
    assert stale(root, write=True) == ["README.md: accuracy"]
    assert readme.read_text() == good
    assert stale(root, write=True) == []


def test_a_document_without_its_marks_is_an_error(tmp_path: Path) -> None:
    root = copied(tmp_path)
    (root / "docs/peers.md").write_text("nothing")
    with pytest.raises(BenchError, match=r"docs/peers.md: no table 'peers' from results/peers/peers.json: it has not one pair"):
        stale(root, write=True)


def test_the_command_ends_with_1_where_a_table_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copied(tmp_path)
    monkeypatch.setattr(tables, "ROOT", root)
    (root / "README.md").write_text((root / "README.md").read_text().replace("| lean | 64 |", "| lean | 65 |"))
    for argv, code, said in ((["--check"], 1, "out of date: README.md: accuracy"), ([], 0, "written: README.md: accuracy"),
                             (["--check"], 0, "every table is up to date")):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["tables", *argv])
        assert tables.main() == code
        assert capsys.readouterr().out == said + "\n"
