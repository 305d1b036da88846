"""Quality figures as plain rows, from receipts of any kind and from published results. Pure but for the published file.

A kind of receipt that holds such figures names a function documents -> rows in its row of bench.kinds.registry.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.grid import Grid

PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "published" / "published-results.csv"


@dataclass(frozen=True)
class KldPoint:
    """Mean KL(reference || candidate) in nats per token. low, high: its interval; floor: noise floor of the same protocol.

    positions: scored ones. ours: from one of our receipts; else published by others. protocol: points of different ones are never
    compared.
    """

    label: str
    mean: float
    protocol: str
    ours: bool
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    positions: int | None = None
    size_bytes: float | None = None
    source: str = ""


# a percentile bootstrap over fewer windows covers less than it says: 95 % become 0.81 with 5 windows, 0.90 with 10, 0.94 with 40
# (3,000 samples each from the 40 window means of results/kld/20261130-0f2ecc767ca1.json)
FEW_WINDOWS = 10


@dataclass(frozen=True)
class Basis:
    """What the points of one figure have in common. key: equal exactly where two points may share a front, whatever the words say.

    model: its name. where: `in process`, or the kit it was served by. prompts: judged ones; judge: by which rule, answers of which
    length. positions, windows: what each KLD rests on. top: the KLD is over so many most likely tokens and the rest, a lower bound.
    """

    key: Hashable
    model: str
    where: str
    prompts: int
    judge: str
    positions: int
    windows: int
    top: int | None = None

    @property
    def name(self) -> str:
        panel = f"{self.positions:,} positions in {self.windows} windows"
        return f"{self.model} {self.where}; {panel}; n = {self.prompts} prompts ({self.judge})"


@dataclass(frozen=True)
class AblationPoint:
    """One edit beside its unedited twin. effect: share of prompts that showed the behaviour before less the share that show it after
    (net: what was lost less what was gained), with the interval of that paired difference: positive where the edit works.

    kld: of the edited model to its twin, nats per token. control: a random direction of equal norm. direction: which one was taken
    out. edit: what is not as usual in it, such as more projections or a kernel of layers. front: no other point of its basis surely
    beats it, as the table has it.
    """

    basis: Basis
    layers: str
    alpha: float
    effect: float
    kld: float
    low: float | None = None
    high: float | None = None
    kld_low: float | None = None
    kld_high: float | None = None
    control: bool = False
    source: str = ""
    direction: str = ""
    edit: str = ""
    front: bool = False


_VALUE = re.compile(r"([\d.]+)(?:[^\d]+([\d.]+)(?:, | ?- ?|-)([\d.]+)[)\]])?")
_SIZE = re.compile(r"~?(\d+) GB")
_POSITIONS = re.compile(r"(?:([\d,]+) x )?([\d,]+) positions")


def published(path: Path = PUBLISHED) -> list[KldPoint]:
    """The published mean KLDs, panel by panel. Rows that state no plain number are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"].startswith("mean KLD")]
    return [point for row in rows if (point := _published(row))]


def _published(row: dict[str, str]) -> KldPoint | None:
    value = _VALUE.match(row["value"])
    if value is None:
        return None
    size, positions = _SIZE.search(row["note"]), _POSITIONS.search(row["workload"])
    low, high = (float(end) if end else None for end in (value[2], value[3]))
    return KldPoint(
        label=row["profile"],
        mean=float(value[1]),
        protocol=row["protocol"],
        ours=False,
        low=low,
        high=high,
        positions=_count(positions[1] or "1") * _count(positions[2]) if positions else None,
        size_bytes=float(size[1]) * 1e9 if size else None,
        source=row["source"],
    )


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def kld_grid(points: Sequence[KldPoint]) -> Grid:
    """One row per point; whose it is stands first."""
    head = ("whose", "what", "mean KLD, nats", "interval", "noise floor", "positions", "size, GB", "protocol", "source")
    note = "Rows of different protocols must not be compared: windows, reference, engine and support differ."
    return Grid(head, tuple(_kld_row(point) for point in points), note=note)


def _kld_row(point: KldPoint) -> tuple[str, ...]:
    interval = "-" if point.low is None or point.high is None else f"{point.low:.6f} to {point.high:.6f}"
    return (
        "ours" if point.ours else "PUBLISHED",
        point.label,
        f"{point.mean:.6f}",
        interval,
        "-" if point.floor is None else f"{point.floor:.6f}",
        f"{point.positions:,}" if point.positions else "-",
        f"{point.size_bytes / 1e9:.1f}" if point.size_bytes else "-",
        point.protocol,
        point.source or "-",
    )


def by_basis(points: Sequence[AblationPoint]) -> list[tuple[Basis, list[AblationPoint]]]:
    """The points that may share a front, with their controls, in order of first appearance."""
    found: dict[Basis, list[AblationPoint]] = {}
    for point in points:
        found.setdefault(point.basis, []).append(point)
    return list(found.items())


def by_direction(points: Sequence[AblationPoint]) -> list[tuple[str, list[AblationPoint]]]:
    """Direction (and kind of edit) and its points, each basis by itself. Controls are no part of it."""
    found: dict[tuple[Basis, str], list[AblationPoint]] = {}
    for point in points:
        if not point.control:
            found.setdefault((point.basis, f"{point.direction} {point.edit}".strip()), []).append(point)
    return [(name, some) for (_, name), some in found.items()]
