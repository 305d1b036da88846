"""Cache labels and cells."""

import pytest

from bench.cells import Member, cells
from bench.measure import RequestMetrics, measure
from bench.proofs import cache_proof
from bench.trace import Trace, Usage


def metrics(prompt: int | None, cached: int | None, ttft_s: float = 2.0) -> RequestMetrics:
    usage = Usage(prompt_tokens=prompt, completion_tokens=2, cached_tokens=cached)
    return measure(Trace(t_s=(ttft_s, ttft_s + 1), kinds="cc", tokens=(1, 2), chunk_counts="usage", t_end_s=ttft_s + 1, usage=usage))


@pytest.mark.parametrize(
    ("prompt", "cached", "label"),
    [
        (1000, 0, "cold"),
        (1000, 50, "cold"),  # 5 %
        (1000, 51, "partial"),
        (1000, 949, "partial"),
        (1000, 950, "warm"),
        (87, 24, "cold"),  # the chat template, which all requests share: below the 30 of the warm-up
        (87, 31, "partial"),
        (8004, 7168, "partial"),  # a repeat on a cache with pages of 3584 tokens
        (1000, None, None),
        (None, 10, None),
    ],
)
def test_labels_come_from_data(prompt: int | None, cached: int | None, label: str | None) -> None:
    assert cache_proof(metrics(prompt, cached), None, common_tokens=30).label == label


def test_the_counter_stands_in_where_the_usage_is_silent() -> None:
    proof = cache_proof(metrics(1000, None), 900, None)
    assert (proof.source, proof.cached_tokens, proof.share, proof.prefill_tok_s) == ("counters", 900, 0.9, 50.0)
    assert cache_proof(metrics(1000, 400), 900, None).source == "usage"
    assert cache_proof(metrics(1000, None), None, None).prefill_tok_s is None


def test_a_cell_is_what_was_asked_and_what_was_found() -> None:
    members = [
        Member("first", metrics(1000, 0), cache_proof(metrics(1000, 0), None, None)),
        Member("repeat", metrics(1000, 999, 0.5), cache_proof(metrics(1000, 999, 0.5), None, None)),
        Member("first", metrics(1000, 10, 4.0), cache_proof(metrics(1000, 10, 4.0), None, None)),
        Member("repeat", metrics(1000, 0), cache_proof(metrics(1000, 0), None, None)),  # evicted meanwhile
    ]
    found = cells(members)
    assert [(cell.asked, cell.label, cell.requests) for cell in found] == [
        ("first", "cold", 2),
        ("repeat", "cold", 1),
        ("repeat", "warm", 1),
    ]
    assert found[0].cached_share == 0.005
    assert found[0].ttft_s is not None
    assert found[0].ttft_s.median == 3.0
    # 1000 / 2 and 990 / 4
    assert found[0].prefill_tok_s is not None
    assert (found[0].prefill_tok_s.min, found[0].prefill_tok_s.max) == (247.5, 500.0)


def test_unknown_shares_are_left_out_of_a_cells_share() -> None:
    silent = Member("first", metrics(1000, None), cache_proof(metrics(1000, None), None, None))
    assert cells([silent])[0].cached_share is None
    assert cells([silent])[0].label is None
