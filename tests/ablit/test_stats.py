"""Figures worked out by hand or taken from published tables."""

import pytest

from ablit.stats import clustered, mcnemar, wilson


def test_wilson_known_values() -> None:
    # 0 of 16 and 9 of 16: 0 to 19.4 %, 33.2 to 76.9 % (Wilson's formula with z = 1.96, worked by hand)
    assert list(wilson(0, 16)) == pytest.approx([0.0, 0.1936], abs=1e-4)
    assert wilson(0, 16)[0] == 0.0
    assert list(wilson(9, 16)) == pytest.approx([0.3318, 0.7690], abs=1e-4)
    assert wilson(16, 16)[1] == 1.0
    for hits, count in ((1, 0), (3, 2), (-1, 4)):
        with pytest.raises(ValueError, match="no rate"):
            wilson(hits, count)


def test_mcnemar_is_the_exact_sign_test() -> None:
    # 10 lost, 2 gained of 12: 2 * (1 + 12 + 66) / 4096 = 0.0385742...
    before = [True] * 10 + [False] * 2 + [True, False]
    after = [False] * 10 + [True] * 2 + [True, False]
    assert mcnemar(before, after) == (10, 2, 158 / 4096)
    assert mcnemar([True, False], [True, False]) == (0, 0, 1.0)
    assert mcnemar([True, False], [False, True]) == (1, 1, 1.0)
    with pytest.raises(ValueError, match="zip"):
        mcnemar([True], [])


def test_clustered_interval() -> None:
    assert clustered([1.0, 2.0]) is None
    assert clustered([0.5] * 8) == (0.5, 0.5)
    interval = clustered([0.0, 1.0] * 50)
    assert interval is not None
    # the mean of 100 coin flips has a standard error of 0.05
    assert list(interval) == pytest.approx([0.40, 0.60], abs=0.02)
