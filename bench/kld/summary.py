"""From positions to figures. Pure, standard library only: `invoke receipt.check` recomputes a receipt with this."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from bench.kld.positions import BUCKETS, MICRO, Positions
from bench.trace import Fact

DRAWS, SEED = 10_000, 20261130


class Scores(Fact):
    """KLD in nats over some positions: KL(reference || candidate); shares from 0 to 1."""

    positions: int
    mean: float
    median: float
    p90: float
    p99: float
    p999: float
    max: float
    min: float
    top1_agreement: float
    lost_from_top_k: float


class Row(Fact):
    """One window or stratum."""

    name: str
    positions: int
    mean: float
    max: float
    top1_agreement: float


class Bucket(Fact):
    """Positions whose reference confidence (largest probability) is at least `low` and below the next bucket's."""

    low: float
    positions: int
    mean: float | None
    top1_agreement: float | None


class Summary(Fact):
    """Everything derived from the positions. interval: 95 %, percentile bootstrap of the mean over windows, drawn with replacement."""

    scores: Scores
    interval: tuple[float, float]
    windows: tuple[Row, ...]
    strata: tuple[Row, ...]
    buckets: tuple[Bucket, ...]


def nats(micro: float) -> float:
    """Micronats as nats, to nine decimals."""
    return round(micro / MICRO, 9)


def quantile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed (no interpolation)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _share(flags: Sequence[bool]) -> float:
    return round(sum(flags) / len(flags), 9)


def scores(windows: Sequence[Positions]) -> Scores:
    """The figures over all positions of `windows`. Raises ValueError without any."""
    kld = sorted(value for window in windows for value in window.kld)
    agree = [each for window in windows for each in window.agree]
    lost = [each for window in windows for each in window.lost]
    return Scores(
        positions=len(kld),
        mean=nats(sum(kld) / len(kld)),
        median=nats(quantile(kld, 0.5)),
        p90=nats(quantile(kld, 0.9)),
        p99=nats(quantile(kld, 0.99)),
        p999=nats(quantile(kld, 0.999)),
        max=nats(kld[-1]),
        min=nats(kld[0]),
        top1_agreement=_share(agree),
        lost_from_top_k=_share(lost),
    )


def _row(name: str, windows: Sequence[Positions]) -> Row:
    found = scores(windows)
    return Row(name=name, positions=found.positions, mean=found.mean, max=found.max, top1_agreement=found.top1_agreement)


def interval(windows: Sequence[Positions], draws: int = DRAWS, seed: int = SEED) -> tuple[float, float]:
    """The 95 % percentile interval of the mean when whole windows are drawn with replacement: positions in a window hang together."""
    sums = [(sum(window.kld), len(window.kld)) for window in windows]
    generator = random.Random(seed)
    means = []
    for _ in range(draws):
        drawn = generator.choices(sums, k=len(sums))
        means.append(sum(part[0] for part in drawn) / sum(part[1] for part in drawn))
    means.sort()
    return nats(means[math.ceil(0.025 * draws) - 1]), nats(means[math.ceil(0.975 * draws) - 1])


def buckets(windows: Sequence[Positions]) -> tuple[Bucket, ...]:
    """Mean KLD and agreement by the reference's confidence."""
    found = []
    for index, low in enumerate(BUCKETS):
        rows = [(k, a) for w in windows for k, a, b in zip(w.kld, w.agree, w.bucket, strict=True) if b == index]
        mean = nats(sum(k for k, _ in rows) / len(rows)) if rows else None
        agreement = _share([a for _, a in rows]) if rows else None
        found.append(Bucket(low=low, positions=len(rows), mean=mean, top1_agreement=agreement))
    return tuple(found)


def summarize(names: Sequence[str], strata: Sequence[str], windows: Sequence[Positions]) -> Summary:
    """The summary of `windows`, whose names and strata are given in the same order. Raises ValueError for no window or position."""
    if not windows or not all(window.kld for window in windows):
        raise ValueError("no positions to summarize")
    by_stratum = {name: [w for s, w in zip(strata, windows, strict=True) if s == name] for name in dict.fromkeys(strata)}
    return Summary(
        scores=scores(windows),
        interval=interval(windows),
        windows=tuple(_row(name, [window]) for name, window in zip(names, windows, strict=True)),
        strata=tuple(_row(name, part) for name, part in by_stratum.items()),
        buckets=buckets(windows),
    )
