"""Phases whose requests share something: a prefix, a server, a conversation."""

from pathlib import Path

import pytest

from tests.bench.phase_runner import bench
from tests.bench.tiny_server import Tiny, serving


@pytest.mark.parametrize("stated", [True, False])
def test_prefix_is_labelled_from_data(tmp_path: Path, stated: bool) -> None:
    """Also where only the server's counters tell what was cached (vLLM without prompt-token details)."""
    with serving(Tiny(stated=stated, prefill_s=0.0005)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prefix", "--depths", "500")
    assert code == 0, receipt.invalid_because
    cells = receipt.summary.cells
    assert cells is not None
    assert [(cell.asked, cell.label) for cell in cells] == [("first", "cold"), ("repeat", "warm"), ("edited", "partial")]
    assert cells[2].cached_share == pytest.approx(0.9, abs=0.02)
    assert cells[1].ttft_s is not None
    assert cells[0].ttft_s is not None
    assert cells[1].ttft_s.median < cells[0].ttft_s.median / 2
    sources = {run.cache.source for run in receipt.runs if run.cache}
    assert sources == {"usage" if stated else "counters"}


def test_without_a_cache_a_repeat_is_called_cold(tmp_path: Path) -> None:
    with serving(Tiny(caching=False)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prefix", "--depths", "300")
    assert code == 0
    assert receipt.summary.cells is not None
    assert [cell.label for cell in receipt.summary.cells] == ["cold", "cold", "cold"]
    assert "a repeated prompt was not served from a prefix cache" in receipt.notes


def test_a_salted_prompt_that_comes_from_the_cache_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A salt that does not change, as a fixed seed would give, measures the cache."""
    monkeypatch.setattr("bench.phases.decode.fresh_salt", lambda: "00000000")
    with serving(Tiny()) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "prefill", "--depths", "300", "--runs", "2")
    assert code == 3
    assert receipt.invalid_because[0].startswith("run 1: 29")
    assert "came from the prefix cache, though salted" in receipt.invalid_because[0]


def test_agents_send_what_was_said_before(tmp_path: Path) -> None:
    with serving(Tiny()) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "agents", "--depths", "400", "--concurrency", "2", "--max-tokens", "10")
        turns = [body["messages"] for body in tiny.bodies[-8:]]
    assert code == 0, receipt.invalid_because
    assert [len(messages) for messages in turns] == sorted([1, 3, 5, 7] * 2) or {len(m) for m in turns} == {1, 3, 5, 7}
    long = max(turns, key=len)
    assert [message["role"] for message in long] == ["user", "assistant"] * 3 + ["user"]
    assert long[1]["content"].startswith("w1 w2 w3")
    cells = receipt.summary.cells
    assert cells is not None
    assert [(cell.asked, cell.requests) for cell in cells] == [("turn 1", 2), ("turn 2", 2), ("turn 3", 2), ("turn 4", 2)]
    sizes = [cell.prompt_tokens.median for cell in cells if cell.prompt_tokens]
    assert sizes == sorted(sizes)
    # turn 2 holds 400 + 10 answered + about 50 new ones, of which the first 400 were there already
    assert cells[1].cached_share == pytest.approx(400 / sizes[1], abs=0.03)
    assert cells[0].label == "cold"


def test_mixed_shows_both_sides(tmp_path: Path) -> None:
    with serving(Tiny(gap_s=0.004, prefill_s=0.0005)) as tiny:
        code, (receipt,) = bench(tiny, tmp_path, "--phase", "mixed", "--depths", "300", "--concurrency", "2", "--max-tokens", "150")
    assert code == 0, receipt.invalid_because
    mixed = receipt.summary.mixed
    assert mixed is not None
    assert (mixed.rounds, mixed.incumbents) == (1, 2)
    assert mixed.newcomer_ttft_s is not None
    assert mixed.newcomer_ttft_s.median >= 0.14  # 300 tokens, 7 of them cached, at 0.5 ms
    for span in (mixed.before_tok_s, mixed.during_tok_s, mixed.after_tok_s):
        assert span is not None
        assert 100 < span.median < 700  # two lanes with a token each 4 ms: 500 tok/s at most, but late tokens come in bursts
    roles = [run.place.role for run in receipt.runs if run.place]
    assert sorted(roles) == ["incumbent", "incumbent", "newcomer", "newcomer alone"]
    newcomer = next(run for run in receipt.runs if run.place and run.place.role == "newcomer")
    assert newcomer.place is not None
    assert newcomer.place.start_s > 32 * 0.004  # not before each incumbent had 32 chunks
