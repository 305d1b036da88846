"""A newcomer among incumbents, worked out by hand."""

import pytest

from bench.interference import interference
from tests.bench.test_groups import lane

# Two incumbents with a token a second each from 1 to 10, but both silent between 4 and 7, when the newcomer's prompt is read.
TIMES = (1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 10.0)
INCUMBENTS = [lane(0.0, *((t, n + 1) for n, t in enumerate(TIMES))) for _ in range(2)]


def test_both_sides() -> None:
    newcomer = lane(4.0, (3.0, 1), (3.5, 2))  # sent at 4, first token at 7, last at 7.5
    found = interference(INCUMBENTS, newcomer, alone_ttft_s=1.5)
    # before: from 1 to 4, 2 lanes x 3 tokens; during: (4, 7] holds the 2 tokens at 7; after: (7.5, 10] holds 2 x 3
    assert found.before_tok_s == 2.0
    assert found.during_tok_s == pytest.approx(2 / 3)
    assert found.after_tok_s == pytest.approx(6 / 2.5)
    assert found.during_share == pytest.approx(1 / 3)
    assert (found.worst_gap_s, found.newcomer_ttft_s, found.newcomer_slowdown) == (3.0, 3.0, 2.0)


def test_incumbents_that_end_first_leave_after_unknown() -> None:
    newcomer = lane(9.0, (3.0, 1), (3.5, 2))  # first token at 12
    found = interference(INCUMBENTS, newcomer, alone_ttft_s=None)
    assert found.after_tok_s is None
    assert found.during_tok_s == 2.0  # what is left of them, until 10
    assert found.newcomer_slowdown is None


def test_a_newcomer_that_got_nothing() -> None:
    found = interference(INCUMBENTS, lane(4.0), alone_ttft_s=1.0)
    assert (found.during_tok_s, found.after_tok_s, found.worst_gap_s, found.newcomer_ttft_s) == (None, None, None, None)
    assert found.before_tok_s == 2.0


def test_a_longer_silence_at_another_time_is_not_the_newcomers() -> None:
    uneven = lane(0.0, (1.0, 1), (6.0, 2), (7.0, 3), (9.0, 4), (10.0, 5))  # 5 s of silence, but before
    found = interference([uneven], lane(7.5, (1.0, 1)), alone_ttft_s=None)
    assert found.worst_gap_s == 2.0
