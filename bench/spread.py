"""Several values of one figure as median, extremes and deviation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from bench.measure import quantile
from bench.trace import Fact


class Spread(Fact):
    """n values: median, extremes and median absolute deviation, in the unit of the field that holds them."""

    n: int
    median: float
    min: float
    max: float
    mad: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are known; None when none is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    middle = statistics.median(known)
    deviations = [abs(value - middle) for value in known]
    return Spread(n=len(known), median=middle, min=known[0], max=known[-1], mad=quantile(deviations, 0.5) or 0.0)
