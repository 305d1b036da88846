"""Intervals and tests for rates. Pure, standard library only."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution
RESAMPLES = 2000


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a rate (E. B. Wilson 1927), good at 0 and at `count`. Raises ValueError unless 0 <= hits <= count, count > 0."""
    if not 0 <= hits <= count or not count:
        raise ValueError(f"{hits} of {count} is no rate")
    rate, z2 = hits / count, Z95 * Z95
    middle = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count * count))
    # at the ends the exact limit is the end itself; rounding must not put it 1e-17 beside
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == count else middle + half)


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """Paired outcomes of the same prompts -> (lost, gained, exact two-sided p).

    lost: true before, false after. p is that of a fair coin among the pairs that changed; 1 when none did.
    """
    lost = sum(b and not a for b, a in zip(before, after, strict=True))
    gained = sum(a and not b for b, a in zip(before, after, strict=True))
    changed, fewer = lost + gained, min(lost, gained)
    tail = sum(math.comb(changed, k) for k in range(fewer + 1)) / 2**changed
    return lost, gained, min(1.0, 2 * tail)


def difference(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, float]:
    """95 % interval of the rate before less the rate after, outcomes of the same prompts (R. G. Newcombe, Statistics in Medicine 17
    (1998) 2635-2650, method 10): both Wilson intervals, joined with the correlation of the pairs. Raises ValueError without prompts.
    """
    count, first, second = len(before), sum(before), sum(after)
    lost, gained, _ = mcnemar(before, after)
    (low1, high1), (low2, high2) = wilson(first, count), wilson(second, count)
    related: float = (first - lost) * (count - first - gained) - lost * gained
    related = max(related - count / 2, 0.0) if related > 0 else related  # the method's correction for continuity
    spread = math.sqrt(first * (count - first) * second * (count - second))
    phi, rate1, rate2 = related / spread if spread else 0.0, first / count, second / count
    down, up = _joined(rate1 - low1, high2 - rate2, phi), _joined(high1 - rate1, rate2 - low2, phi)
    return rate1 - rate2 - down, rate1 - rate2 + up


def _joined(a: float, b: float, phi: float) -> float:
    """How far a difference is out when its two sides are a and b out, errors correlated by phi."""
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def clustered(means: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of the mean over clusters of equal size (windows), by bootstrap; None for fewer than three."""
    if len(means) < 3:
        return None
    draw = random.Random(seed)
    resampled = sorted(statistics.fmean(draw.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return resampled[round(0.025 * (RESAMPLES - 1))], resampled[round(0.975 * (RESAMPLES - 1))]
