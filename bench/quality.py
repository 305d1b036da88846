"""Quality figures as plain rows, from receipts of any kind and from published results. Pure but for the published file.

A kind of receipt that holds such figures names a function documents -> rows in its row of bench.kinds.registry.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
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


@dataclass(frozen=True)
class AblationPoint:
    """One edit beside its unedited twin. effect: share of prompts that showed the behaviour before less the share that show it after,
    with its interval: positive where the edit works.

    kld: of the edited model to its twin, nats per token. control: a random direction of equal norm. prompts: judged ones. direction:
    which one was taken out, where there are several. edit: what is not as usual in it, such as more projections or a kernel of layers.
    """

    layers: str
    alpha: float
    effect: float
    kld: float
    low: float | None = None
    high: float | None = None
    kld_low: float | None = None
    kld_high: float | None = None
    prompts: int | None = None
    control: bool = False
    source: str = ""
    direction: str = ""
    edit: str = ""


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


def front(points: Sequence[AblationPoint]) -> list[AblationPoint]:
    """The edits that no other one beats in effect and KLD at once, by their means, by growing KLD. Controls are no part of it."""
    best: list[AblationPoint] = []
    for point in sorted((point for point in points if not point.control), key=lambda point: (point.kld, -point.effect)):
        if not best or point.effect > best[-1].effect:
            best.append(point)
    return best


def by_direction(points: Sequence[AblationPoint]) -> dict[str, list[AblationPoint]]:
    """Direction (and kind of edit) -> its points, and with each the controls of that kind."""
    parts = dict.fromkeys((point.direction, point.edit) for point in points if not point.control)
    return {
        f"{name} {edit}".strip(): [point for point in points if point.edit == edit and (point.control or point.direction == name)]
        for name, edit in parts
    }
