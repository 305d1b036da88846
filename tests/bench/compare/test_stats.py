"""The comparison's statistics against numbers worked out by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.calibration import permutation_p
from bench.compare import stats
from bench.compare.stats import Design


def dealt(a: list[float], b: list[float], blocks: tuple[int, ...] | None = None) -> Design:
    return Design((*a, *b), (False,) * len(a) + (True,) * len(b), blocks)


def test_four_against_four_apart() -> None:
    found = stats.shift(dealt([1, 2, 3, 4], [11, 12, 13, 14]))
    assert found.splits == 70  # 8! / (4! 4!)
    assert found.p == pytest.approx(2 / 70)
    assert found.p_smallest == pytest.approx(2 / 70)
    # only the observed split is as extreme, so the interval ends at the nearest other: 11 - 4 and 14 - 1
    assert (found.low, found.high) == (7, 13)
    assert found.estimate == 10
    assert found.error == 0


def test_p_counts_the_splits_by_hand() -> None:
    # of all ways to choose 4 of 1..8, those summing to at most 1+2+3+5 = 11: {1,2,3,4} and {1,2,3,5}
    found = stats.shift(dealt([1, 2, 3, 5], [4, 6, 7, 8]))
    assert found.p == pytest.approx(2 * 2 / 70)
    assert stats.shift(dealt([4, 6, 7, 8], [1, 2, 3, 5])).p == pytest.approx(2 * 2 / 70)


def test_three_boots_never_reach_five_percent() -> None:
    found = stats.shift(dealt([1, 2, 3], [101, 102, 103]))
    assert found.p == pytest.approx(2 / 20)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_interval_by_hand() -> None:
    # A 0 1, B 2 4: swapping one gives 2-0, 2-1, 4-0, 4-1, both 3-0.5; sorted 1 2 2.5 3 4; six splits with the observed one.
    # alpha 0.7: kept are shifts with 2 * count / 6 > 0.7, count >= 3, the observed and two more: from 2 to 3.
    found = stats.shift(dealt([0, 1], [2, 4]), alpha=0.7)
    assert (found.low, found.high) == (2, 3)
    assert found.p == pytest.approx(2 / 6)
    assert found.estimate == 2.5


def test_the_estimate_is_the_median_of_pairs() -> None:
    # 10 9 8, 11 10 9, 100 99 98: one boot far off moves it little; inside blocks only 0 -> 10 and 2 -> 13
    assert stats.hodges_lehmann(dealt([0, 1, 2], [10, 11, 100])) == 10
    assert stats.hodges_lehmann(dealt([0, 2], [10, 13], (0, 1, 0, 1))) == 10.5


def test_unequal_numbers_of_boots() -> None:
    # 2 against 4: 15 splits; only the observed one has the two smallest in A
    found = stats.shift(dealt([1, 2], [3, 4, 5, 6]))
    assert found.p == pytest.approx(2 / 15)
    assert found.splits == 15


def test_equal_values_are_no_difference() -> None:
    found = stats.shift(dealt([5.0] * 4, [5.0] * 4))
    assert found.p == 1
    assert (found.low, found.high, found.estimate) == (0, 0, 0)


def test_blocks_see_what_drift_hides() -> None:
    # apart inside each block (1 2 | 3 4 and 101 102 | 103 104), mixed over both
    blocks = (0, 0, 1, 1, 0, 0, 1, 1)
    values = ([1.0, 2, 101, 102], [3.0, 4, 103, 104])
    assert stats.shift(dealt(*values, blocks)).p == pytest.approx(2 / 36)  # 6 ways a block
    assert stats.shift(dealt(*values)).p > 0.5
    assert stats.shift(dealt(*values, blocks)).estimate == 2
    # five a side: two blocks of four and a pair: 6 * 6 * 2 ways
    assert stats.split_count(dealt([1.0] * 5, [2.0] * 5, (0, 0, 1, 1, 2, 0, 0, 1, 1, 2))) == 72


def test_too_many_splits_are_drawn_and_say_so() -> None:
    rng = random.Random(1)
    a, b = [rng.gauss(0, 1) for _ in range(11)], [rng.gauss(0, 1) for _ in range(11)]
    found = stats.shift(dealt(a, b))
    assert math.comb(22, 11) > stats.EXACT_SPLITS
    assert found.splits == stats.DRAWS + 1
    assert found.error == pytest.approx(math.sqrt(found.p * (1 - found.p) / found.splits))
    exact = permutation_p(np.array([[*a, *b]]), np.array([False] * 11 + [True] * 11))[0]
    assert found.p == pytest.approx(exact, abs=5 * found.error)
    assert stats.shift(dealt(a, [x + 100 for x in b])).p > 0


def test_holm_by_hand() -> None:
    # smallest times three, next times two, last times one, never falling: .03, .06, max(.06, .04)
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.6, 0.7]) == [1.0, 1.0]
    assert stats.holm([0.02]) == [0.02]


def test_spread_and_detectable_change() -> None:
    # residuals +-1 around each arm's mean: 4 squares, 4 - 2 degrees of freedom
    assert stats.boot_sd(dealt([0, 2], [5, 7])) == pytest.approx(math.sqrt(2))
    # inside blocks: block means 1 + 2 apart, arms 2 apart, nothing left
    assert stats.boot_sd(dealt([1, 11], [3, 13], (0, 1, 0, 1))) == 0
    four = dealt([0, 2, 0, 2], [5, 7, 5, 7])  # residuals +-1: 8 squares, 6 degrees of freedom
    assert stats.detectable(four) == pytest.approx(2.85 * math.sqrt(8 / 6))
    assert stats.detectable(dealt([0, 2, 0], [5, 7, 5])) is None
    # 4 and 12 boots tell as much as 6 and 6; residuals +-1: 16 squares, 14 degrees of freedom
    assert stats.detectable(dealt([0.0, 2] * 2, [5.0, 7] * 6)) == pytest.approx(1.79 * math.sqrt(16 / 14))
    twenty = dealt([0.0, 2] * 10, [5.0, 7] * 10)  # sd sqrt(40 / 38); 2.802 sqrt(2 / 20)
    assert stats.detectable(twenty) == pytest.approx(2.802 * math.sqrt(0.1) * math.sqrt(40 / 38))


def test_bootstrap_of_boots_without_spread_is_a_point() -> None:
    assert stats.bootstrap([[1.0] * 3] * 4, [[3.0] * 3] * 4, draws=50) == (2, 2)
    low, high = stats.bootstrap([[0.0], [1.0]], [[0.0], [1.0]], draws=2000)
    assert (low, high) == (-1, 1)
    # the median of ten draws is the outlier only when six of them are: about once in 7,000
    assert stats.bootstrap([[1.0]], [[0.0] * 9 + [10.0]], draws=300) == (-1, -1)


def test_tail_by_hand() -> None:
    runs = [[100.0, 100, 100, 80, 100], [50.0, 50, 50, 50, 46]]
    # of ten runs one is below 0.9 of its boot's median (80); 46 is 0.92
    assert stats.slow_shares(runs) == [0.2, 0.0]
    # a run exactly 10 % below is not slow
    assert stats.slow_shares([[100.0, 100, 90]]) == [0.0]
    assert stats.tail([[100.0, 100, 90]]).slow_share == 0
    found = stats.tail(runs)
    assert (found.runs, found.slow_share) == (10, 0.1)
    # ratios sorted 0.8 0.92 1 ...: the 10th percentile lies 0.9 of the way from the first to the second
    assert found.low_ratio == pytest.approx(0.8 + 0.9 * 0.12)


def test_tail_p_by_hand() -> None:
    clean, slow = [[100.0] * 5] * 4, [[100.0] * 4 + [80.0]] * 4
    assert stats.tail_p(clean, slow) == pytest.approx(1 / 70)
    assert stats.tail_p(slow, clean) == 1
    assert stats.tail_p(clean, clean) == 1
    # two slow boots of four: the splits with both in B: C(6, 2) of 70
    assert stats.tail_p(clean, [*slow[:2], *clean[:2]]) == pytest.approx(15 / 70)
    # unequal numbers: the one slow boot is among B's three in 3 of 5 deals
    assert stats.tail_p(clean[:2], [slow[0], *clean[:2]]) == pytest.approx(3 / 5)


VALUES = st.lists(st.floats(-2, 2), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(VALUES, VALUES, st.floats(-3, 3))
def test_shifting_everything_changes_nothing(a: list[float], b: list[float], by: float) -> None:
    before, after = stats.shift(dealt(a, b)), stats.shift(dealt([x + by for x in a], [x + by for x in b]))
    assert after.estimate == pytest.approx(before.estimate, abs=1e-9)
    assert after.low == pytest.approx(before.low, abs=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(VALUES, VALUES)
def test_swapping_the_arms_mirrors_the_result(a: list[float], b: list[float]) -> None:
    there, back = stats.shift(dealt(a, b)), stats.shift(dealt(b, a))
    assert back.p == pytest.approx(there.p)
    assert back.estimate == pytest.approx(-there.estimate, abs=1e-12)
    assert back.low == pytest.approx(-there.high, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.floats(-2, 2), min_size=4, max_size=5), st.integers(0, 10**6))
def test_interval_and_p_agree(a: list[float], seed: int) -> None:
    """p <= alpha exactly when 0 lies outside the interval."""
    rng = random.Random(seed)
    b = [x + rng.gauss(0.5, 1) for x in a]
    found = stats.shift(dealt(a, b))
    assert (found.p <= 0.05) == (not found.low - 1e-9 <= 0 <= found.high + 1e-9)
