"""Many points over one unedited pass: a grid, or a search. One receipt per point in a folder; what is finished is never measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ablit import evaluate, grid, receipt
from ablit.edit import Vectors, fits
from ablit.evaluate import Bench
from ablit.receipt import Receipt
from ablit.spec import EditSpec, layers, shown
from bench.errors import BenchError, InvalidMeasurement

Say = Callable[[str], None]
Point = tuple[EditSpec, Vectors]


def path_of(folder: Path, bench: Bench, spec: EditSpec) -> Path:
    return folder / f"{evaluate.identity(bench, spec)}.json"


def finished(path: Path) -> Receipt | None:
    """The receipt at `path`; None when there is none or it is not sound (it was cut off): the point is measured again."""
    try:
        return receipt.check(path) if path.exists() else None
    except InvalidMeasurement:
        return None


def run(bench: Bench, points: Sequence[Point], folder: Path, say: Say) -> list[Receipt]:
    """Measure what is not finished, in order; all receipts. Everything that can be refused is refused before the first point.

    Raises BadRequest, BenchError. Interrupting keeps the finished points.
    """
    for spec, vectors in points:
        fits(bench.loaded.model, spec, vectors)
    made: list[Receipt] = []
    spent: list[float] = []
    forks = grid.forks([spec for spec, _ in points])
    try:
        for number, (spec, vectors) in enumerate(points, 1):
            started = time.monotonic()
            fresh: list[str] = []
            made.append(measured(bench, spec, vectors, folder, fresh, forks[spec]))
            spent += [time.monotonic() - started] if fresh else []
            say(_line(number, len(points), made[-1], spent, bool(fresh)))
    except KeyboardInterrupt:
        raise BenchError(f"interrupted after {len(made)} of {len(points)} points\ntry: the same command again goes on there") from None
    return made


def measured(bench: Bench, spec: EditSpec, vectors: Vectors, folder: Path, fresh: list[str], keep: Sequence[int] = ()) -> Receipt:
    """The finished receipt of the point, or a new one; a new one's id is added to `fresh`. keep: as of panel.Base.measure."""
    path = path_of(folder, bench, spec)
    known = finished(path)
    if known:
        return known
    made = evaluate.point(bench, spec, vectors, keep)
    receipt.write(made, path)
    fresh.append(made.id)
    return made


def _line(number: int, count: int, made: Receipt, spent: Sequence[float], fresh: bool) -> str:
    side, name = made.summary.sides[0], made.direction.get("name", "")
    left = f", about {(count - number) * sum(spent) / len(spent) / 60:.0f} min left" if spent else ""
    how = f"{spent[-1]:.0f} s{left}" if fresh else "finished before"
    where = f"{name} {shown(made.spec.layers)} alpha {made.spec.alpha:g}"
    return f"point {number} of {count}: {where}: KLD {made.summary.kld:.4f}, rate {side.stock_rate:.0%} > {side.rate:.0%} ({how})"


def ranges(texts: Sequence[str], count: int) -> Iterator[tuple[int, ...]]:
    """Each `--layers` text as layers of a model of `count` layers. Raises BadRequest."""
    for text in texts:
        yield layers(text, count)
