"""Positions and summary: numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import InvalidMeasurement
from bench.kld.positions import BUCKETS, Positions, bucket_of, micronats, packed, unpacked
from bench.kld.summary import interval, quantile, scores, summarize


def made(*kld: int, agree: bool = True, lost: bool = False, bucket: int = 0) -> Positions:
    count = len(kld)
    return Positions(kld, (agree,) * count, (lost,) * count, (bucket,) * count)


def test_micronats_round_and_keep_small_negatives() -> None:
    assert micronats([0.0, 1e-6, 0.0123456789, -4.4e-6, 2.5]) == (0, 1, 12346, -4, 2_500_000)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e3])
def test_a_kld_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(InvalidMeasurement, match="not finite"):
        micronats([0.1, bad])


def test_buckets_begin_at_their_lower_end() -> None:
    assert [bucket_of(c) for c in (0.0, 0.0999, 0.1, 0.5, 0.8999, 0.99, 1.0)] == [0, 0, 1, 3, 4, 6, 6]


@given(st.lists(st.tuples(st.integers(-100, 9 * 10**8), st.booleans(), st.booleans(), st.integers(0, len(BUCKETS) - 1)), max_size=40))
def test_packing_loses_nothing(rows: list[tuple[int, bool, bool, int]]) -> None:
    columns = [tuple(row[i] for row in rows) for i in range(4)]
    positions = Positions(*columns)  # type: ignore[arg-type]
    assert unpacked(packed(positions)) == positions


NO_BUCKET = packed(Positions((1, 2), (True,) * 2, (True,) * 2, (63, 63)))["flags"]


@pytest.mark.parametrize("change", [{"kld": "AAAA"}, {"kld": "%"}, {"flags": packed(made(1))["flags"]}, {"flags": NO_BUCKET}])
def test_text_that_is_not_packed_positions_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(InvalidMeasurement, match="positions of a window cannot be read"):
        unpacked({**packed(made(1, 2)), **change})


def test_quantiles_are_values_that_occur() -> None:
    assert [quantile(range(1, 11), share) for share in (0.0, 0.5, 0.9, 0.91, 0.999)] == [1, 5, 9, 10, 10]


def test_scores_by_hand() -> None:
    """Ten positions 1..10 thousand micronats in one window, two of 0 and one of -4 in another."""
    first = Positions(tuple(range(1000, 11000, 1000)), (True,) * 9 + (False,), (False,) * 9 + (True,), (0,) * 10)
    found = scores([first, made(0, 0, -4)])
    assert found.positions == 13
    assert found.mean == 0.004230462  # 54,996 / 13 micronats
    assert (found.median, found.p90, found.p99, found.p999) == (0.004, 0.009, 0.01, 0.01)
    assert (found.max, found.min) == (0.01, -4e-06)
    assert found.top1_agreement == 0.923076923  # 12 / 13
    assert found.lost_from_top_k == 0.076923077  # 1 / 13


def test_summary_by_window_stratum_and_bucket() -> None:
    windows = (made(10, 20, bucket=6), made(40, agree=False, bucket=1), made(0, 2, 4, bucket=6))
    found = summarize(("a-0", "a-1", "b-0"), ("a", "a", "b"), windows)
    assert [(row.name, row.positions, row.mean) for row in found.windows] == [("a-0", 2, 1.5e-05), ("a-1", 1, 4e-05), ("b-0", 3, 2e-06)]
    assert [(row.name, row.mean, row.top1_agreement) for row in found.strata] == [("a", 2.3333e-05, 0.666666667), ("b", 2e-06, 1.0)]
    filled = [(b.low, b.positions, b.mean, b.top1_agreement) for b in found.buckets if b.positions]
    assert filled == [(0.1, 1, 4e-05, 0.0), (0.99, 5, 7.2e-06, 1.0)]
    assert found.buckets[0].mean is None


def test_the_interval_draws_whole_windows() -> None:
    """Two windows: the mean of two draws is 0 (a quarter), 50 or 100 micronats (a quarter), so the 95 % interval is both ends. If single
    positions were drawn, the mean of 200 would lie near 50."""
    assert interval([made(*[0] * 100), made(*[100] * 100)]) == (0.0, 1e-04)
    assert interval([made(7, 7), made(7, 7)]) == (7e-06, 7e-06)


def test_the_interval_weighs_windows_by_their_positions() -> None:
    """Drawing (100 x 1, 0 x 3): means 100, 25 or 0."""
    assert interval([made(100), made(0, 0, 0)], draws=4000) == (0.0, 1e-04)
    means = {interval([made(100), made(0, 0, 0)], draws=1, seed=seed)[0] for seed in range(20)}
    assert means == {0.0, 2.5e-05, 1e-04}


def test_no_positions_no_summary() -> None:
    with pytest.raises(ValueError, match="no positions"):
        summarize((), (), ())
    with pytest.raises(ValueError, match="different length"):
        Positions((1,), (True,), (), (0,))
