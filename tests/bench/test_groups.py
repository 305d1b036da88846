"""Group figures of hand-made lanes. Every expected number was worked out by hand."""

import pytest

from bench.groups import Lane, group, rate_between, steady_span, tokens_between
from bench.measure import measure
from bench.trace import Trace, Usage


def lane(start_s: float, *chunks: tuple[float, int | None], total: int | None = None) -> Lane:
    """Chunks as (seconds after the request was sent, cumulative tokens)."""
    counts = [n for _, n in chunks if n is not None]
    usage = Usage(prompt_tokens=10, completion_tokens=total if total is not None else counts[-1] if counts else None)
    trace = Trace(
        t_s=tuple(t for t, _ in chunks),
        kinds="c" * len(chunks),
        tokens=tuple(n for _, n in chunks),
        chunk_counts="usage" if counts else None,
        t_end_s=chunks[-1][0] if chunks else 1.0,
        usage=usage,
        finish_reason="length",
    )
    return Lane(start_s, trace, measure(trace))


# A: sent at 0, tokens at 1, 2, 3, 4 (one each). B: sent at 0.5, first token at 2 (1.5 s later), then 4 tokens at once at 3, and 1 at 6.
A = lane(0.0, (1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4))
B = lane(0.5, (1.5, 1), (2.5, 5), (5.5, 6))


def test_two_lanes_by_hand() -> None:
    found = group([A, B])
    # all 10 tokens from 0 to 6
    assert (found.tokens, found.wall_s) == (10, 6.0)
    assert found.wall_tok_s == pytest.approx(10 / 6)
    assert group([B, A]).wall_s == 6.0  # from the first request, whichever lane it is
    # both decode from 2 (B's first) to 4 (A's last): A brings 2 tokens (at 3 and 4), B 4 (at 3)
    assert (found.steady_s, found.steady_tokens, found.steady_tok_s) == (2.0, 6, 3.0)
    # B's chunk of one token at 6 was under way at 4; A has a chunk exactly at 2, so nothing of A is cut
    assert found.cut_tokens == 1
    # A: 3 tokens in 3 s; B: 5 tokens after the first in 4 s
    assert found.lane_tok_s == (1.0, 1.25)
    assert found.fairness == 0.8
    assert (found.ttft_p50_s, found.ttft_max_s) == (1.25, 1.5)


def test_neither_rate_is_the_sum_of_the_streams() -> None:
    """The public recipe's own receipt has an A/B of +16.5 % by wall time and -5.4 % by the sum of stream rates."""
    found = group([A, B])
    assert sum(rate or 0 for rate in found.lane_tok_s) == 2.25
    assert found.wall_tok_s != pytest.approx(2.25)
    assert found.steady_tok_s != pytest.approx(2.25)


def test_the_sign_of_a_comparison_follows_wall_time_not_stream_rates() -> None:
    """Four lanes whose streams got slower but start without queueing: more tokens a second for everybody together."""
    queued = [lane(0.0, (wait, 1), (wait + 2.0, 101)) for wait in (0.5, 0.5, 2.5, 2.5)]  # 50 tok/s each, but in two shifts
    shared = [lane(0.0, (0.5, 1), (0.5 + 2.5, 101)) for _ in range(4)]  # 40 tok/s each, all at once
    before, after = group(queued), group(shared)
    assert sum(r or 0 for r in after.lane_tok_s) < sum(r or 0 for r in before.lane_tok_s)  # 160 < 200
    assert before.wall_tok_s == pytest.approx(404 / 4.5)
    assert after.wall_tok_s == pytest.approx(404 / 3.0)


def test_lanes_that_never_overlap_have_no_steady_rate() -> None:
    first, second = lane(0.0, (1.0, 1), (2.0, 2)), lane(0.0, (3.0, 1), (4.0, 2))
    found = group([first, second])
    assert (found.steady_s, found.steady_tokens, found.steady_tok_s, found.cut_tokens) == (None, None, None, None)
    assert found.wall_tok_s == 1.0


def test_tokens_of_chunks_that_state_no_count_are_not_guessed() -> None:
    silent = lane(0.0, (1.0, None), (2.0, None), (5.0, None), total=30)
    found = group([silent, A])
    assert found.tokens == 34
    assert found.wall_tok_s == pytest.approx(34 / 5)
    assert (found.steady_s, found.steady_tok_s, found.cut_tokens) == (3.0, None, None)


def test_a_lane_without_usage_makes_the_whole_unknown_and_not_smaller() -> None:
    trace = Trace(t_s=(1.0, 2.0), kinds="cc", tokens=(None, None), t_end_s=2.0, finish_reason="length")
    found = group([Lane(0.0, trace, measure(trace)), A])
    assert (found.tokens, found.wall_tok_s, found.steady_tok_s, found.fairness) == (None, None, None, None)
    assert found.wall_s == 4.0


def test_a_lane_that_brought_nothing_has_no_wall() -> None:
    nothing = lane(0.0)
    found = group([nothing, A])
    assert (found.wall_s, found.wall_tok_s, found.steady_s) == (None, None, None)
    assert group([]).wall_s is None


@pytest.mark.parametrize(
    ("begin", "end", "tokens"),
    [
        (0.0, 10.0, 10),  # everything
        (1.0, 3.0, 7),  # A at 2 and 3, B 1 at 2 and 4 at 3; A's chunk at 1 belongs to the time before
        (2.0, 3.0, 5),  # A at 3; B's four
        (2.9, 2.95, 0),  # a multi-token chunk counts where it arrives, here later
        (3.0, 3.5, 0),
    ],
)
def test_a_span_holds_the_chunks_that_arrive_in_it(begin: float, end: float, tokens: int) -> None:
    assert tokens_between([A, B], begin, end) == tokens


def test_an_empty_or_unknown_span_has_no_rate() -> None:
    assert rate_between([A], None, 2.0) is None
    assert rate_between([A], 2.0, 2.0) is None
    assert rate_between([A], 3.0, 2.0) is None
    assert rate_between([A], 1.0, 3.0) == 1.0


def test_steady_span_of_one_lane_is_its_decode() -> None:
    assert steady_span([B]) == (2.0, 6.0)
    assert group([B]).steady_tok_s == B.metrics.decode_tok_s == 1.25
