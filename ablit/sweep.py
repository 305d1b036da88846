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
Done = Callable[[Receipt, float | None], None]
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
    forks, size = grid.forks([spec for spec, _ in points]), evaluate.at_once(bench)

    def done(receipt: Receipt, seconds: float | None) -> None:
        made.append(receipt)
        spent.extend([seconds] if seconds is not None else [])
        say(_line(len(made), len(points), receipt, spent, seconds is not None))

    try:
        for start in range(0, len(points), size):
            measured(bench, [(*point, forks[point[0]]) for point in points[start : start + size]], folder, done)
    except KeyboardInterrupt:
        raise BenchError(f"interrupted after {len(made)} of {len(points)} points\ntry: the same command again goes on there") from None
    return made


def measured(bench: Bench, group: Sequence[tuple[EditSpec, Vectors, Sequence[int]]], folder: Path, done: Done) -> None:
    """Points whose answers go on together, each with the layers to keep (as of panel.Base.measure); a finished one is not measured again.

    done: gets each receipt as soon as it is written, with the seconds that it took, None if it was there. When something ends this, the
    points whose turn was over are finished all the same.
    """
    known = {spec: finished(path_of(folder, bench, spec)) for spec, *_ in group}
    begun: list[evaluate.Begun] = []
    started = time.monotonic()
    try:
        for spec, vectors, keep in group:
            if not known[spec]:
                begun.append(evaluate.begin(bench, spec, vectors, keep))
    finally:
        fresh = {made.spec: made for made in evaluate.finish(bench, begun)}
        seconds = (time.monotonic() - started) / max(len(fresh), 1)
        for spec, *_ in group:
            if made := fresh.get(spec):
                receipt.write(made, path_of(folder, bench, spec))
                done(made, seconds)
            elif was := known[spec]:
                done(was, None)


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
