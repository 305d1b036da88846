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


def clustered(means: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of the mean over clusters of equal size (windows), by bootstrap; None for fewer than three."""
    if len(means) < 3:
        return None
    draw = random.Random(seed)
    resampled = sorted(statistics.fmean(draw.choices(means, k=len(means))) for _ in range(RESAMPLES))
    return resampled[round(0.025 * (RESAMPLES - 1))], resampled[round(0.975 * (RESAMPLES - 1))]
