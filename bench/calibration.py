"""How often does each way of comparing two arms claim a difference that is not there, and how often does it find one that is?

`python -m bench.calibration --out results/calibration/NAME.json` simulates boots (log scale, Gaussian) and counts. Noise: boot sd
1 %, run sd 1.5 %, five runs a boot, as assumed in the first published estimates that this repeats; also linear drift of 0.4 % per
boot, boots correlated with their predecessors (AR(1), the marginal sd kept), and both. The only module that imports numpy.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.provenance import tool
from bench.receipt import seal_of
from bench.sealed import write

SCHEMA = "spark-lab/calibration/v1"
Array = NDArray[np.float64]
Rng = np.random.Generator
BOOTS = (4, 5, 6)
CHUNK = 5_000


@dataclass(frozen=True)
class Noise:
    """boot_sd, run_sd, drift (per boot in running order): log scale. rho: correlation of a boot with the one before."""

    name: str
    boot_sd: float = 0.010
    run_sd: float = 0.015
    drift: float = 0.0
    rho: float = 0.0


NOISES = (
    Noise("independent"),
    Noise("drift 0.4 %/boot", drift=0.004),
    Noise("AR(1) 0.5", rho=0.5),
    Noise("AR(1) 0.8", rho=0.8),
    Noise("drift and AR(1) 0.5", drift=0.004, rho=0.5),
)
QUIET, PROSE = Noise("quiet: 1 % / 1.5 %"), Noise("prose: 2.5 % / 6 %", boot_sd=0.025, run_sd=0.06)


def abba(boots: int, start: bool = False) -> NDArray[np.bool_]:
    """True for B, in running order: ABBA BAAB ..., and a pair at the end of an odd number."""
    return np.array([(slot % 4 in (1, 2)) ^ (slot // 4 % 2 == 1) ^ start for slot in range(2 * boots)])


def blocks_of(boots: int) -> list[int]:
    """The block of each slot of the block design: four boots each, and the rest of an odd number a pair."""
    return [slot // 4 for slot in range(2 * boots)]


def shuffled_blocks(boots: int, rng: Rng) -> NDArray[np.bool_]:
    """Two of each arm in every block of four, in an order drawn anew."""
    sizes = np.unique(blocks_of(boots), return_counts=True)[1]
    return np.concatenate([rng.permutation(np.arange(size) % 2 == 1) for size in sizes])


def simulate(noise: Noise, slots: int, runs: int, count: int, rng: Rng) -> Array:
    """count x slots x runs log values without any effect, in running order."""
    boot = rng.normal(size=(count, slots))
    for slot in range(1, slots):
        boot[:, slot] = noise.rho * boot[:, slot - 1] + math.sqrt(1 - noise.rho**2) * boot[:, slot]
    mean = noise.boot_sd * boot + noise.drift * np.arange(slots)
    values: Array = mean[:, :, None] + rng.normal(scale=noise.run_sd, size=(count, slots, runs))
    return values


def split_matrix(in_b: NDArray[np.bool_], blocks: Sequence[int] | None) -> Array:
    """splits x slots: weights whose product with the boot values is mean(B) - mean(A) of every way to deal the labels out."""
    at = np.array(blocks if blocks is not None else [0] * len(in_b))
    groups = [np.flatnonzero(at == each) for each in sorted(set(at.tolist()))]
    choices = [list(itertools.combinations(group.tolist(), int((~in_b[group]).sum()))) for group in groups]
    n_a, n_b = int((~in_b).sum()), int(in_b.sum())
    rows = np.full((math.prod(map(len, choices)), len(in_b)), 1 / n_b)
    for row, parts in zip(rows, itertools.product(*choices), strict=True):
        row[list(itertools.chain.from_iterable(parts))] = -1 / n_a
    return rows


def permutation_p(medians: Array, in_b: NDArray[np.bool_], blocks: Sequence[int] | None = None) -> Array:
    """The two-sided p of bench.compare.stats.shift for every row of `medians` (boot values in running order)."""
    matrix, observed = split_matrix(in_b, blocks), np.where(in_b, 1 / in_b.sum(), -1 / (~in_b).sum())
    dealt, seen = medians @ matrix.T, (medians @ observed)[:, None]
    sides = np.minimum((dealt >= seen - 1e-12).mean(axis=1), (dealt <= seen + 1e-12).mean(axis=1))
    p: Array = np.minimum(1, 2 * sides)
    return p


def _claims_exact(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    return permutation_p(np.median(values, axis=2), in_b) <= 0.05 + 1e-9


def _claims_block(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    return permutation_p(np.median(values, axis=2), in_b, blocks_of(len(in_b) // 2)) <= 0.05 + 1e-9


def _claims_t(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    medians, n = np.median(values, axis=2), int(in_b.sum())
    a, b = medians[:, ~in_b], medians[:, in_b]
    pooled = (a.var(axis=1, ddof=1) + b.var(axis=1, ddof=1)) / 2
    limit = {4: 2.446912, 5: 2.306004, 6: 2.228139}[n]  # two-sided 5 % points of t with 2n - 2 degrees of freedom
    claims: NDArray[np.bool_] = np.abs(b.mean(axis=1) - a.mean(axis=1)) > limit * np.sqrt(2 * pooled / n)
    return claims


def _claims_ranges(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    """The naive eye test on boot medians: the two ranges do not overlap."""
    medians = np.median(values, axis=2)
    a, b = medians[:, ~in_b], medians[:, in_b]
    claims: NDArray[np.bool_] = (a.max(axis=1) < b.min(axis=1)) | (b.max(axis=1) < a.min(axis=1))
    return claims


def _resampled(units: Array, draws: int, rng: Rng) -> Array:
    """count x draws means of `units` (count x n) drawn with replacement; all rows share the draws."""
    weights = rng.multinomial(units.shape[1], np.full(units.shape[1], 1 / units.shape[1]), size=draws) / units.shape[1]
    means: Array = units @ weights.T
    return means


def _claims_interval(a: Array, b: Array, rng: Rng, draws: int = 1000) -> NDArray[np.bool_]:
    difference = _resampled(b, draws, rng) - _resampled(a, draws, rng)
    low, high = np.quantile(difference, [0.025, 0.975], axis=1)
    claims: NDArray[np.bool_] = (low > 0) | (high < 0)
    return claims


def _claims_pooled(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    """A bootstrap over all runs of an arm, as if they were independent."""
    a, b = values[:, ~in_b], values[:, in_b]
    return _claims_interval(a.reshape(len(a), -1), b.reshape(len(b), -1), rng)


def _claims_boots(values: Array, in_b: NDArray[np.bool_], rng: Rng) -> NDArray[np.bool_]:
    medians = np.median(values, axis=2)
    return _claims_interval(medians[:, ~in_b], medians[:, in_b], rng)


Claims = Callable[[Array, NDArray[np.bool_], Rng], NDArray[np.bool_]]
METHODS: dict[str, Claims] = {
    "exact permutation": _claims_exact,
    "t test of boot medians": _claims_t,
    "ranges do not overlap": _claims_ranges,
    "bootstrap over boots": _claims_boots,
    "bootstrap over pooled runs": _claims_pooled,
}
ORDERS: dict[str, Callable[[int], NDArray[np.bool_]]] = {
    "ABBA": abba,
    "ABAB": lambda boots: np.arange(2 * boots) % 2 == 1,
    "AABB": lambda boots: np.arange(2 * boots) >= boots,
}


@dataclass(frozen=True)
class Cell:
    """Share of simulated comparisons in which `method` claimed a difference; error: its standard error."""

    method: str
    order: str
    noise: str
    boots: int
    effect: float
    simulations: int
    claimed: float
    error: float


@dataclass(frozen=True)
class Case:
    """What is simulated: noise, boots per arm, runs a boot, true effect (B is faster by this share), how often."""

    noise: Noise
    boots: int
    effect: float = 0.0
    runs: int = 5
    count: int = 20_000


def rate(case: Case, method: str, order: str, rng: Rng) -> Cell:
    """Simulate one cell. Order `blocks`: drawn anew for each chunk of simulations, tested inside blocks."""
    claimed = 0
    chunk = CHUNK if order != "blocks" else max(1, case.count // 200)
    for begin in range(0, case.count, chunk):
        size = min(chunk, case.count - begin)
        in_b = shuffled_blocks(case.boots, rng) if order == "blocks" else ORDERS[order](case.boots)
        values = simulate(case.noise, 2 * case.boots, case.runs, size, rng) + math.log1p(case.effect) * in_b[None, :, None]
        claims = _claims_block if order == "blocks" else METHODS[method]
        claimed += int(claims(values, in_b, rng).sum())
    share = claimed / case.count
    error = math.sqrt(max(share * (1 - share), 1 / case.count) / case.count)
    return Cell(method, order, case.noise.name, case.boots, case.effect, case.count, round(share, 5), round(error, 5))


def false_alarms(count: int, rng: Rng) -> list[Cell]:
    """No effect: every method in every order, and the block design."""
    cells = []
    for noise, boots in itertools.product(NOISES, BOOTS):
        for method, order in itertools.product(METHODS, ORDERS):
            few = count // 10 if "bootstrap" in method else count
            cells.append(rate(Case(noise, boots, count=few), method, order, rng))
        cells.append(rate(Case(noise, boots, count=count), "exact permutation inside blocks", "blocks", rng))
    return cells


def power(count: int, rng: Rng) -> list[Cell]:
    """A true effect of 3, 5 and 10 %: how often the two designs find it."""
    cells = []
    for noise, effect, boots in itertools.product((QUIET, PROSE, NOISES[1]), (0.03, 0.05, 0.10), (*BOOTS, 8)):
        case = Case(noise, boots, effect, count=count)
        cells.append(rate(case, "exact permutation", "ABBA", rng))
        if boots > 4:
            cells.append(rate(case, "exact permutation inside blocks", "blocks", rng))
    return cells


def detected_80(boots: int, blocks: bool, count: int, rng: Rng) -> float:
    """The shift in boot standard deviations that the test finds in 80 % of cases, by bisection on common random numbers."""
    in_b, noise = abba(boots), rng.normal(size=(count, 2 * boots))
    low, high = 0.5, 8.0
    while high - low > 0.005:
        middle = (low + high) / 2
        parts = np.array_split(noise, max(1, count // 1000))
        p = np.concatenate([permutation_p(part + middle * in_b, in_b, blocks_of(boots) if blocks else None) for part in parts])
        low, high = (middle, high) if (p <= 0.05 + 1e-9).mean() < 0.8 else (low, middle)
    return round((low + high) / 2, 2)


def calibrate(count: int, seed: int) -> dict[str, Any]:
    """The sealed receipt as plain data."""
    rng = np.random.default_rng(seed)
    factors = {
        "free": {str(n): detected_80(n, False, 4000, rng) for n in (4, 5, 6, 7, 8)},
        "block": {str(n): detected_80(n, True, 4000, rng) for n in (5, 6, 7, 8)},
    }
    payload = {
        "receipt": SCHEMA,
        "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m bench.calibration --simulations {count} --seed {seed}",
        "tool": tool().model_dump(mode="json"),
        "noises": [asdict(noise) for noise in (*NOISES, QUIET, PROSE)],
        "runs_per_boot": 5,
        "false_alarms": [asdict(cell) for cell in false_alarms(count, rng)],
        "power": [asdict(cell) for cell in power(count // 2, rng)],
        "detected_80_boot_sds": factors,
    }
    return {**payload, "seal": seal_of(payload)}


def above_nominal(receipt: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells of our two designs that claim more than 5 % plus three standard errors; empty when the gate may be trusted."""
    ours = [c for c in receipt["false_alarms"] if c["order"] == "blocks" or (c["method"] == "exact permutation" and c["order"] == "ABBA")]
    return [cell for cell in ours if cell["claimed"] > 0.05 + 3 * cell["error"]]


def table(receipt: dict[str, Any]) -> str:
    """Markdown: false alarms in percent, one row per method and order, one column per noise; 4 / 5 / 6 boots in each cell."""
    cells = {(c["method"], c["order"], c["noise"], c["boots"]): c["claimed"] for c in receipt["false_alarms"]}
    noises = list(dict.fromkeys(c["noise"] for c in receipt["false_alarms"]))
    rows = list(dict.fromkeys((c["method"], c["order"]) for c in receipt["false_alarms"]))
    lines = [f"| method | order | {' | '.join(noises)} |", f"| --- | --- |{' --- |' * len(noises)}"]
    for method, order in rows:
        shares = [" / ".join(f"{100 * cells[method, order, noise, boots]:.1f}" for boots in BOOTS) for noise in noises]
        lines.append(f"| {method} | {order} | {' | '.join(shares)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Ends with 1 when a design of ours exceeds its level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the receipt goes; without it only the table is printed")
    parser.add_argument("--show", type=Path, help="simulate nothing: print the table of this receipt")
    parser.add_argument("--simulations", type=int, default=20_000, help="per cell; a tenth of it for the bootstraps")
    parser.add_argument("--seed", type=int, default=20261129)
    args = parser.parse_args(argv)
    receipt = json.loads(args.show.read_text(encoding="utf-8")) if args.show else calibrate(args.simulations, args.seed)
    if args.out:
        write(receipt, args.out)
    print(table(receipt))
    wrong = above_nominal(receipt)
    for cell in wrong:
        print(f"above its level: {cell}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
