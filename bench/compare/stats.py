"""The statistics of a comparison. Pure, standard library only.

Unit: the boot. Repeats inside one boot share its fate (placement, clocks, memory layout) and are not independent, so a boot is
one number: the median of its runs, as a logarithm. A shift s on the log scale is a change by exp(s) - 1.

Test: exact permutation of the boots over the arms. Swapping the set S of A's boots against the set T of B's changes the
difference of means by -k (1/nA + 1/nB) (mean(T) - mean(S)), k = |S| = |T|, and shifting all of B by d shifts every mean(T) by d.
So the one-sided p for the shift d is the share of splits with mean(T) - mean(S) <= d (the observed split always counts), and the
limits of the interval by test inversion are order statistics of these differences: nothing is searched on a grid.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

EXACT_SPLITS = 200_000
DRAWS = 100_000
ALPHA = 0.05
_TIE = 1e-12

# Shift, in boot standard deviations, that the test finds in 80 % of cases at alpha 0.05, by boots per arm: bench/calibration.py,
# receipt in results/calibration/. Above the largest: the normal approximation.
DETECTED_80 = {
    "free": {4: 2.85, 5: 2.08, 6: 1.79, 7: 1.65, 8: 1.52},
    "block": {5: 2.67, 6: 1.91, 7: 1.72, 8: 1.54},
}


@dataclass(frozen=True)
class Design:
    """One comparison's boots in the order they ran: log value and whether the boot is of arm B.

    blocks: the block number of each boot when the splits are confined to blocks (random order inside each), else None.
    """

    values: tuple[float, ...]
    in_b: tuple[bool, ...]
    blocks: tuple[int, ...] | None = None

    @property
    def a(self) -> tuple[float, ...]:
        return tuple(v for v, b in zip(self.values, self.in_b, strict=True) if not b)

    @property
    def b(self) -> tuple[float, ...]:
        return tuple(v for v, b in zip(self.values, self.in_b, strict=True) if b)

    def groups(self) -> list[list[int]]:
        """Positions inside which labels may be permuted."""
        blocks = self.blocks or (0,) * len(self.values)
        return [[i for i, block in enumerate(blocks) if block == each] for each in sorted(set(blocks))]


@dataclass(frozen=True)
class Shift:
    """B against A on the log scale. low, high: the interval by test inversion, infinite where the test can never reject.

    estimate: Hodges-Lehmann, the median of all differences b - a (inside blocks where the test permutes inside blocks).
    p: two-sided, twice the smaller one-sided. p_smallest: the smallest that so few boots can give. error: standard error of p when the
    splits were drawn, 0 when all were counted.
    """

    estimate: float
    low: float
    high: float
    p: float
    p_smallest: float
    splits: int
    error: float


def split_count(design: Design) -> int:
    """How many ways there are to deal the labels out."""
    return math.prod(math.comb(len(group), sum(not design.in_b[i] for i in group)) for group in design.groups())


def _all_splits(design: Design) -> Iterator[tuple[int, ...]]:
    """Every set of positions that could have been arm A."""
    each = [itertools.combinations(group, sum(not design.in_b[i] for i in group)) for group in design.groups()]
    for parts in itertools.product(*each):
        yield tuple(itertools.chain.from_iterable(parts))


def _drawn_splits(design: Design, draws: int, seed: int) -> Iterator[tuple[int, ...]]:
    rng = random.Random(seed)
    sizes = [(group, sum(not design.in_b[i] for i in group)) for group in design.groups()]
    for _ in range(draws):
        yield tuple(i for group, size in sizes for i in rng.sample(group, size))


def _swapped(design: Design, split: tuple[int, ...]) -> float | None:
    """mean(T) - mean(S) of the split, None for the observed one."""
    moved = [i for i in split if design.in_b[i]]
    if not moved:
        return None
    kept = set(split)
    given = [i for i, b in enumerate(design.in_b) if not b and i not in kept]
    return math.fsum([*(design.values[i] for i in moved), *(-design.values[i] for i in given)]) / len(moved)


def shift(design: Design, alpha: float = ALPHA, seed: int = 20261129) -> Shift:
    """The permutation test of `design` and its inversion. Needs a boot of each arm."""
    exact = split_count(design)
    if exact <= EXACT_SPLITS:
        found = [_swapped(design, split) for split in _all_splits(design)]
    else:  # the observed split is added, so that p is never 0 and the test keeps its level
        found = [None, *(_swapped(design, split) for split in _drawn_splits(design, DRAWS, seed))]
    moves = sorted(value for value in found if value is not None)
    same, total = len(found) - len(moves), len(found)
    tie = _TIE * max(1.0, *(abs(value) for value in design.values))
    greater = same + sum(value <= tie for value in moves)
    less = same + sum(value >= -tie for value in moves)
    p = min(1.0, 2 * min(greater, less) / total)
    at = math.floor(alpha * total / 2 + _TIE) - same
    return Shift(
        estimate=hodges_lehmann(design),
        low=moves[at] if 0 <= at < len(moves) else -math.inf,
        high=moves[-1 - at] if 0 <= at < len(moves) else math.inf,
        p=p,
        p_smallest=min(1.0, 2 * same / total),
        splits=total,
        error=0.0 if exact <= EXACT_SPLITS else math.sqrt(p * (1 - p) / total),
    )


def hodges_lehmann(design: Design) -> float:
    """The median of b - a over all pairs of one boot of each arm, of the same block where there are blocks."""
    pairs = [
        design.values[j] - design.values[i]
        for group in design.groups()
        for i in group
        for j in group
        if design.in_b[j] and not design.in_b[i]
    ]
    return statistics.median(pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def boot_sd(design: Design) -> float | None:
    """Standard deviation of boots of one arm (and one block), pooled; None without a degree of freedom.

    Every block holds as many boots of A as of B, so block means and the arms' difference are estimated apart.
    """
    difference = statistics.fmean(design.b) - statistics.fmean(design.a)
    squares, freedom = 0.0, len(design.values) - 1
    for group in design.groups():
        share = sum(design.in_b[i] for i in group) / len(group)
        middle = statistics.fmean(design.values[i] for i in group)
        squares += math.fsum((design.values[i] - middle - difference * (design.in_b[i] - share)) ** 2 for i in group)
        freedom -= 1
    return math.sqrt(squares / freedom) if freedom > 0 else None


def detectable(design: Design) -> float | None:
    """The log shift that this many boots with this spread would show in 80 % of repeats; None when they never could."""
    sd, kind = boot_sd(design), "free" if design.blocks is None else "block"
    boots = 2 / (1 / len(design.a) + 1 / len(design.b))
    known = DETECTED_80[kind]
    if sd is None or boots < min(known):
        return None
    factor = known[math.floor(boots)] if boots < max(known) + 1 else (1.96 + 0.842) * math.sqrt(2 / boots)
    return factor * sd


def bootstrap(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], draws: int = 10_000, seed: int = 20261129) -> tuple[float, float]:
    """Hierarchical percentile interval (2.5 to 97.5 %) of the log shift: boots drawn first, then runs inside each.

    A description only: with 4 to 6 boots its false alarms are far above the nominal rate (see bench/calibration.py).
    """
    rng = random.Random(seed)

    def draw(boots: Sequence[Sequence[float]]) -> float:
        picked = [boots[int(rng.random() * len(boots))] for _ in boots]
        return statistics.fmean(_middle([runs[int(rng.random() * len(runs))] for _ in runs]) for runs in picked)

    shifts = sorted(draw(b) - draw(a) for _ in range(draws))
    return shifts[round(0.025 * (draws - 1))], shifts[round(0.975 * (draws - 1))]


def _middle(values: list[float]) -> float:
    """statistics.median without its checks, which would take most of the bootstrap's time."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True)
class Tail:
    """Slow runs of an arm. slow_share: runs more than 10 % below their boot's median. low_ratio: 10th percentile of run / boot median."""

    runs: int
    slow_share: float
    low_ratio: float


SLOW = 0.9


def slow_shares(boots: Sequence[Sequence[float]]) -> list[float]:
    """The share of slow runs of each boot; `boots` holds every boot's run values (not logs; higher is better)."""
    return [sum(value < SLOW * statistics.median(runs) for value in runs) / len(runs) for runs in boots]


def tail(boots: Sequence[Sequence[float]]) -> Tail:
    """The lower tail of an arm's runs, each against its own boot."""
    ratios = sorted(value / statistics.median(runs) for runs in boots for value in runs)
    at = (len(ratios) - 1) * 0.1
    low, part = int(at), at - int(at)
    high = min(low + 1, len(ratios) - 1)
    share = sum(ratio < SLOW for ratio in ratios) / len(ratios)
    return Tail(len(ratios), share, ratios[low] + (ratios[high] - ratios[low]) * part)


def tail_p(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """One-sided permutation p that B's boots have more slow runs than A's; 1 when they have not."""
    shares = [*slow_shares(a), *slow_shares(b)]
    dealt, observed = Design(tuple(shares), (False,) * len(a) + (True,) * len(b)), tuple(range(len(a)))
    exact = split_count(dealt) <= EXACT_SPLITS
    splits = list(_all_splits(dealt)) if exact else [observed, *_drawn_splits(dealt, DRAWS, 20261129)]
    least = _mean_gap(shares, observed) - _TIE
    return sum(_mean_gap(shares, split) >= least for split in splits) / len(splits)


def _mean_gap(shares: Sequence[float], in_a: tuple[int, ...]) -> float:
    a = math.fsum(shares[i] for i in in_a)
    return (math.fsum(shares) - a) / (len(shares) - len(in_a)) - a / len(in_a)
