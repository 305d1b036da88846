"""Tables of the documents that come from the accuracy and the peers receipt (that they are up to date: tests/cli/test_documents.py)."""

from pathlib import Path

import pytest

from bench import tables
from bench.errors import BenchError


def test_each_table_has_the_rows_of_its_receipt() -> None:
    assert "| lean | 64 |" in tables.accuracy()
    assert "\n\nGoals of the lean client, by streams: at 1 TTFT 1 ms" in tables.accuracy()
    summary, verdict = tables.peers_summary().split("\n\n")
    assert verdict.startswith("CPU per token: ")
    assert verdict.endswith(("met.\n", "missed.\n"))
    for table in (summary + "\n", tables.peers(), tables.peers_cost()):
        assert table.startswith("| ")
        assert table.endswith("|\n")
        assert "| vllm bench serve" in table


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_a_receipt_that_cannot_be_read_is_named(text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "peers").mkdir()
    if text is not None:
        (tmp_path / "peers/peers.json").write_text(text)
    with pytest.raises(BenchError, match=r"no table from results/peers/peers\.json: "):
        tables.peers_live()
