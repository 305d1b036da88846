"""Verdicts, their rules, and what must not change them."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.compare import verdict
from bench.compare.load import Boot
from bench.compare.verdict import Pair, Rules
from tests.bench.compare.support import ABBA, flat, pair

ALL = Rules(primary=("prose",), draws=100)


def word(one: Pair, rules: Rules = ALL) -> str:
    return verdict.judge([one], rules)[0].verdict


def test_faster_and_slower() -> None:
    up = pair(ABBA, flat(100, 101, 102, 103), flat(110, 111, 112, 113))
    found = verdict.judge([up], ALL)[0]
    assert found.verdict == "FASTER"
    assert found.test.p == pytest.approx(2 / 70)
    # on the log scale the interval ends at the nearest other split: 110 / 103 and 113 / 100
    assert found.interval.low == pytest.approx(110 / 103 - 1)
    assert found.interval.high == pytest.approx(0.13)
    assert found.detectable is not None
    assert 0 < found.detectable < 0.1
    assert word(pair(ABBA, flat(110, 111, 112, 113), flat(100, 101, 102, 103))) == "SLOWER"


def test_not_slower_needs_the_whole_interval_above_the_margin() -> None:
    close = pair(ABBA, flat(100, 100.5, 101, 100.2), flat(100.1, 100.6, 100.9, 100.3))
    assert word(close) == "NOT SLOWER"  # lowest: 100.1 / 101 = -0.9 %
    assert word(close, Rules(("prose",), margin=0.005)) == "INCONCLUSIVE"


def test_a_guard_is_slower_only_beyond_the_margin() -> None:
    guard = Rules(primary=())
    one_percent = pair(ABBA, flat(100, 100.1, 100.2, 100.3), flat(99, 99.1, 99.2, 99.3))
    assert word(one_percent) == "SLOWER"  # p = 2/70 as a primary endpoint
    assert word(one_percent, guard) == "NOT SLOWER"  # from 99/100.3 = -1.3 % to 99.3/100 = -0.7 %
    assert word(pair(ABBA, flat(100, 100.1, 100.2, 100.3), flat(97, 97.1, 97.2, 97.3)), guard) == "SLOWER"


def test_holm_over_the_primary_endpoints() -> None:
    first = pair(ABBA, flat(100, 101, 102, 103), flat(110, 111, 112, 113), "prose")
    second = pair(ABBA, flat(100, 101, 102, 103), flat(100.5, 101.5, 102.5, 99), "structured")
    results = verdict.judge([first, second], Rules(("prose", "structured")))
    assert results[0].test.p == pytest.approx(2 / 70)
    assert results[0].test.p_holm == pytest.approx(4 / 70)  # twice 2/70 is above 0.05
    assert results[0].verdict == "NOT SLOWER"
    only = verdict.judge([first, second], Rules(("prose",), draws=100))
    assert (only[0].verdict, only[1].test.p_holm) == ("FASTER", None)


def test_too_few_boots_are_descriptive_only() -> None:
    found = verdict.judge([pair("ABBABA", flat(1, 1.1, 1.2), flat(9, 9.1, 9.2))], ALL)[0]
    assert found.verdict == "DESCRIPTIVE ONLY"
    assert "3 boots" in found.why
    assert found.detectable is None
    assert verdict.overall([found], None, []).exit_code == 4
    # the smaller arm counts
    uneven = verdict.judge([pair("ABABABA", flat(1, 1.1, 1.2, 1.3), flat(9, 9.1, 9.2))], ALL)[0]
    assert (uneven.verdict, uneven.why.partition(" of")[0]) == ("DESCRIPTIVE ONLY", "3 boots")


def test_an_order_that_confounds_drift_gives_no_verdict() -> None:
    values = (flat(100, 101, 102, 103), flat(110, 111, 112, 113))
    assert word(pair("AAAABBBB", *values)) == "DESCRIPTIVE ONLY"
    assert "AAAABBBB" in verdict.order_doubt(pair("AAAABBBB", *values))
    assert verdict.order_doubt(pair("ABABABAB", *values)) == ""  # mean places one apart
    assert verdict.order_doubt(pair("AABABBAB", *values)) != ""  # places 0 1 3 6 and 2 4 5 7: 2.5 and 4.5
    assert verdict.order_doubt(pair("AABABABB", *values)) != ""  # places 0 1 3 5 and 2 4 6 7: 2.25 and 4.75
    # a drawn order inside blocks is what the block test accounts for
    blocks = dict(enumerate((0, 0, 0, 0, 1, 1, 1, 1, 2, 2)))
    drawn = pair("AABBAABBAB", flat(1, 1, 1, 1, 1), flat(2, 2, 2, 2, 2))
    found = verdict.judge([drawn], Rules(("prose",), blocks=blocks))[0]
    assert (found.verdict, found.test.kind, found.test.splits) == ("FASTER", "block", 72)


def slow(base: float, share: int) -> list[float]:
    return [base] * (5 - share) + [base * 0.8] * share


def test_a_slow_mode_that_the_median_hides_fails() -> None:
    a = [slow(100 + i, 0) for i in range(4)]
    b = [slow(110 + i, 1) for i in range(4)]
    results = verdict.judge([pair(ABBA, a, b)], ALL)
    assert results[0].verdict == "FASTER"
    assert results[0].tail.verdict == "worse"
    assert (results[0].tail.slow_share_a, results[0].tail.slow_share_b) == (0, 0.2)
    assert results[0].tail.p == pytest.approx(1 / 70)
    assert verdict.overall(results, None, []).exit_code == 1
    assert "slow runs" in verdict.overall(results, None, []).text
    # the same tail in both arms is no change
    same = verdict.judge([pair(ABBA, [slow(100 + i, 1) for i in range(4)], b)], ALL)[0]
    assert same.tail.verdict == "fine"
    # half of the boots: chance may explain it, so it is undecided, not a failure
    some = verdict.judge([pair(ABBA, a, [slow(110 + i, 1 if i < 2 else 0) for i in range(4)])], ALL)
    assert some[0].tail.verdict == "suspect"
    assert verdict.overall(some, None, []).exit_code == 4


def test_a_tail_that_reaches_lower_without_slow_runs_is_suspect() -> None:
    """Eight of twenty runs at 0.92 of their boot's median: none is slow, but the 10th percentile is 8 % lower. 4 % are no step."""
    a = [[100.0] * 5] * 4
    low, near = (verdict.tail_verdict(a, [[100.0, 100, 100, value, value]] * 4) for value in (92.0, 96.0))
    assert (low.slow_share_b, low.low_ratio_b, low.p, low.verdict) == (0, 0.92, 1, "suspect")
    assert near.verdict == "fine"


def test_overall() -> None:
    up = verdict.judge([pair(ABBA, flat(100, 101, 102, 103), flat(110, 111, 112, 113))], ALL)
    assert (verdict.overall(up, None, []).exit_code, verdict.overall(up, None, []).text) == (0, "FASTER in prose")
    assert verdict.overall(up, None, ["coherence"]).exit_code == 1
    noisy = pair(ABBA, flat(80, 101, 120, 103), flat(90, 111, 85, 113), "code")
    both = verdict.judge([pair(ABBA, flat(100, 101, 102, 103), flat(110, 111, 112, 113)), noisy], ALL)
    assert verdict.overall(both, None, []).text == "INCONCLUSIVE: FASTER in prose, but undecided: code"
    assert verdict.overall(both, None, []).exit_code == 4
    down = verdict.judge([pair(ABBA, flat(110, 111, 112, 113), flat(100, 101, 102, 103))], ALL)
    assert verdict.overall(down, None, []).exit_code == 1


def test_a_control_that_differs_from_itself_undoes_the_verdict() -> None:
    up = verdict.judge([pair(ABBA, flat(100, 101, 102, 103), flat(110, 111, 112, 113))], ALL)
    fine = verdict.control(pair(ABBA, flat(100, 100, 100, 100), flat(101, 101, 101, 101)), 0.015)
    off = verdict.control(pair(ABBA, flat(100, 100, 100, 100), flat(98, 98, 98, 98)), 0.015)
    assert (fine.held, off.held) == (True, False)
    assert off.change == pytest.approx(-0.02)
    assert verdict.overall(up, [fine], []).exit_code == 0
    assert verdict.overall(up, [fine, off], []).exit_code == 4


BOOTS = st.lists(st.lists(st.floats(20, 80), min_size=3, max_size=5), min_size=8, max_size=8)


def changed(one: Pair, change: object) -> Pair:
    return Pair(one.name, one.figure, [change(x) for x in one.a], [change(x) for x in one.b])  # type: ignore[operator]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(BOOTS, st.integers(0, 10**6))
def test_the_order_of_runs_inside_a_boot_changes_nothing(runs: list[list[float]], seed: int) -> None:
    def shuffled(boot: Boot) -> Boot:
        mixed = list(boot.runs)
        random.Random(seed).shuffle(mixed)
        return Boot(boot.boot, boot.arm, boot.first_utc, boot.slot, tuple(mixed))

    before = pair(ABBA, runs[:4], runs[4:])
    one, two = (verdict.judge([each], ALL)[0] for each in (before, changed(before, shuffled)))
    assert (one.verdict, one.test, one.interval, one.change, one.detectable) == (
        two.verdict,
        two.test,
        two.interval,
        two.change,
        two.detectable,
    )
    assert one.tail == two.tail


@settings(max_examples=25, deadline=None, derandomize=True)
@given(BOOTS, st.floats(0.01, 100))
def test_scaling_every_rate_changes_nothing(runs: list[list[float]], by: float) -> None:
    def scaled(boot: Boot) -> Boot:
        return Boot(boot.boot, boot.arm, boot.first_utc, boot.slot, tuple(value * by for value in boot.runs))

    before = pair(ABBA, runs[:4], runs[4:])
    one, two = (verdict.judge([each], ALL)[0] for each in (before, changed(before, scaled)))
    assert one.verdict == two.verdict
    assert one.test.p == pytest.approx(two.test.p)
    assert two.change == pytest.approx(one.change, abs=1e-9)
    assert math.isclose(one.boot_sd or 0, two.boot_sd or 0, abs_tol=1e-9)
