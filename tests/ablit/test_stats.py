"""Figures worked out by hand or taken from published tables."""

import pytest

from ablit.stats import clustered, difference, mcnemar, wilson


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


def pairs(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    before = [True] * (both + lost) + [False] * (gained + neither)
    return before, [True] * both + [False] * lost + [True] * gained + [False] * neither


@pytest.mark.parametrize(
    ("table", "limits"),
    [
        # response to a therapy before and after (Cavo et al. 2012) in M. Fagerland, S. Lydersen, P. Laake, Statistical Analysis of
        # Contingency Tables, 2017, chapter 8: -0.0621 (-0.1186 to -0.0046)
        ((59, 6, 16, 80), (-0.1186, -0.0046)),
        # D. Altman et al., Statistics with Confidence, 2nd edition, table 6.2: rates 19 and 14 of 41. By hand: Wilson 0.3206-0.6125 and
        # 0.2156-0.4945, phi = (14 x 22 - 41 / 2) / sqrt(19 x 22 x 14 x 27) = 0.7233, so that 0.1220 - 0.1105 and 0.1220 + 0.1045
        ((14, 5, 0, 22), (0.0115, 0.2265)),
        # 1 x 12 - 1 x 7 is below 21 / 2: no correlation is left, sqrt(0.0687^2 + 0.2102^2) down and sqrt(0.1939^2 + 0.1734^2) up
        ((1, 1, 7, 12), (-0.5069, -0.0256)),
        # nobody changed and nobody was different: not a zero-width interval
        ((4, 0, 0, 0), (-0.4899, 0.4899)),
    ],
)
def test_paired_difference(table: tuple[int, int, int, int], limits: tuple[float, float]) -> None:
    before, after = pairs(*table)
    assert list(difference(before, after)) == pytest.approx(limits, abs=6e-5)
    low, high = difference(after, before)
    assert [-high, -low] == pytest.approx(limits, abs=6e-5)


def test_clustered_interval() -> None:
    assert clustered([1.0, 2.0]) is None
    assert clustered([0.5] * 8) == (0.5, 0.5)
    interval = clustered([0.0, 1.0] * 50)
    assert interval is not None
    # the mean of 100 coin flips has a standard error of 0.05
    assert list(interval) == pytest.approx([0.40, 0.60], abs=0.02)
