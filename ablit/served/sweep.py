"""The points of a served sweep, one start of the kit each: twin, controls, grid. Resumable; the kit is put back in the end.

The folder holds one receipt a point, speed/ (performance receipts of the starts) and work/ (the stock pass, not to be committed).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ablit import pareto
from ablit import receipt as receipts
from ablit.grid import Grid
from ablit.receipt import Receipt
from ablit.served import point as points
from ablit.served.direction import Direction, random_like
from ablit.served.measure import Asked, Booted, Say, Taken, take
from ablit.served.point import Kit, Pass, Point
from ablit.spec import shown
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kld import capture as captures


class Hands(Protocol):
    """What starts and stops the kit; the launcher's failures pass through."""

    def place(self, directions: Sequence[Direction]) -> None:
        """Put the files where every rank will find them."""

    def boot(self, point: Point | None) -> Booted:
        """A fresh start with the point's edit, unedited for a twin. None: the stock model, as it runs already if it does."""

    def still(self, booted: Booted) -> bool:
        """Whether this very start still runs."""

    def put_back(self) -> None:
        """The settings from before the sweep, or stopped if it was stopped."""


@dataclass(frozen=True)
class Sweep:
    """What is to be measured: points of a kit, the twin first; `panel_sha256`: of the sealed texts; `folder`: where receipts go."""

    kit: Kit
    asked: Asked
    points: tuple[Point, ...]
    panel_sha256: str
    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def id(self, point: Point | None) -> str:
        return points.identity(self.kit, self.asked, self.panel_sha256, point.spec if point else None)

    def path(self, point: Point) -> Path:
        return self.folder / f"{self.id(point)}.json"

    def finished(self, point: Point) -> Receipt | None:
        """The point's receipt; None when there is none or it is not sound: the point is measured again."""
        with contextlib.suppress(InvalidMeasurement):
            return receipts.check(self.path(point)) if self.path(point).exists() else None
        return None


def points_of(grid: Grid, real: Direction) -> tuple[Point, ...]:
    return tuple(Point(spec, direction) for spec, direction in grid.points(real, random_like))


def told(sweep: Sweep, start_s: float | None) -> list[str]:
    """The plan: what would be started, in order. start_s: how long a start of this kit took, None where unknown."""
    left = [point for point in sweep.points if not sweep.finished(point)]
    stock = 0 if _kept(sweep) else 1
    took = f"about {start_s / 60:.1f} minutes each by its last start, and the measurement" if start_s else "each as long as `invoke up`"
    starts = len(left) + stock if left else 0
    return [
        f"kit {sweep.kit.name}, model {sweep.kit.model.name}: {len(sweep.points)} points, {len(sweep.points) - len(left)} finished before",
        f"{starts} start{'' if starts == 1 else 's'} of the kit, {took}; then it is put back",
        *(["  stock pass, unedited"] if left and stock else []),
        *(f"  {sweep.id(point)}: {name(point)}" for point in left),
    ]


def name(point: Point) -> str:
    what = "unedited twin" if point.control == "twin" else point.direction.facts.get("name", point.direction.id[:12])
    return f"{what}, layers {shown(point.spec.layers)}, alpha {point.spec.alpha:g}"


def run(sweep: Sweep, hands: Hands, say: Say) -> list[Receipt]:
    """Measure what is not finished, in order; all receipts. An interruption keeps what is finished, and the kit is put back after any
    ending. Raises BadRequest, BenchError, InvalidMeasurement, and what the launcher raises."""
    refuse_strangers(sweep)
    left = [point for point in sweep.points if not sweep.finished(point)]
    if left:
        with _put_back(hands, say):
            _fill(sweep, hands, say)
    return [receipts.check(sweep.path(point)) for point in sweep.points]


def refuse_strangers(sweep: Sweep) -> None:
    """Raises BadRequest when the folder holds receipts of another kit, model or support: nobody should take them for one sweep's."""
    kit = (sweep.kit.name, sweep.kit.ranks, sweep.kit.settings_sha256)
    own = dict(zip(pareto.BASIS, (sweep.kit.model, kit, sweep.asked.k), strict=False))
    good, _ = pareto.load(sorted(sweep.folder.glob("*.json")))
    for each in good:
        theirs = dict(zip(pareto.BASIS, pareto.basis(each), strict=True))
        for field, value in own.items():
            if theirs[field] != value:
                where = f"{sweep.folder} holds receipt {each.id} of another {field}"
                raise BadRequest(f"{where}: {_brief(theirs[field])}, and this sweep has {_brief(value)}\ntry: another --out")


def _brief(value: object) -> str:
    words = value if isinstance(value, tuple) else (getattr(value, "name", value),)
    return " ".join(str(word)[:40] for word in words) if value is not None else "none (measured in process)"


@contextlib.contextmanager
def _put_back(hands: Hands, say: Say) -> Iterator[None]:
    try:
        yield
    except BaseException:
        try:
            hands.put_back()
        except (Exception, KeyboardInterrupt) as error:
            say(f"the kit could not be put back: {str(error) or 'interrupted'}; do it with: invoke restart, or invoke down")
        raise
    hands.put_back()


def _fill(sweep: Sweep, hands: Hands, say: Say) -> None:
    """Every open point. Interrupted: BenchError with how far it came."""
    spent: list[float] = []
    number = 0
    try:
        _tidy(sweep)
        hands.place([point.direction for point in sweep.points])
        stock = _stock(sweep, hands, say)
        for number, point in enumerate(sweep.points, 1):
            if sweep.finished(point):
                continue
            say(f"point {number} of {len(sweep.points)}: {name(point)}")
            began = time.monotonic()
            made = _measured(sweep, hands, stock, point, say)
            spent.append(time.monotonic() - began)
            open_points = sum(not sweep.finished(each) for each in sweep.points)
            say(_line(number, len(sweep.points), made, spent[-1], open_points * sum(spent) / len(spent)))
    except KeyboardInterrupt:
        done = sum(sweep.finished(point) is not None for point in sweep.points)
        why = f"interrupted; {done} of {len(sweep.points)} points are finished and kept in {sweep.folder}"
        raise BenchError(f"{why}\ntry: the same command again goes on there") from None
    except Exception:
        say(f"stopped at {f'point {number} of {len(sweep.points)}' if number else 'the stock pass'}; what is finished is kept")
        raise


def _line(number: int, count: int, made: Receipt, spent_s: float, left_s: float) -> str:
    side = made.summary.sides[0]
    figures = f"KLD {made.summary.kld:.4f} or more, rate {side.stock_rate:.0%} > {side.rate:.0%}"
    return f"point {number} of {count}: {figures} ({spent_s:.0f} s, about {left_s / 60:.0f} min left)"


def _tidy(sweep: Sweep) -> None:
    """The work folder, without what cut-off points left. Raises BenchError."""
    try:
        sweep.work.mkdir(parents=True, exist_ok=True)
        (sweep.work / ".gitignore").write_text("*\n")
        kept = _kept(sweep)
        for path in sweep.work.glob("*.npz*"):
            if kept is None or path.name != kept.capture:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise BenchError(f"cannot use {sweep.work}: {error.strerror}\ntry: free disk space, or another --out") from error


def _kept(sweep: Sweep) -> Taken | None:
    """The stock pass of an earlier call with the same question, if its file and its capture are there and whole."""
    try:
        kept = Taken.model_validate_json((sweep.work / f"stock-{sweep.id(None)}").read_text())
        captures.read(sweep.work / kept.capture)
    except (OSError, ValueError, BenchError):
        return None
    return kept


def _stock(sweep: Sweep, hands: Hands, say: Say) -> Pass:
    """The unedited model's answers and capture: kept from an earlier call, or measured now."""
    kept = _kept(sweep)
    if kept is None:
        say("stock pass: the unedited model")
        kept = _took(sweep, hands, None, None, say)[0]
        receipts.replace(sweep.work / f"stock-{sweep.id(None)}", kept.model_dump_json())
    return Pass(kept, captures.read(sweep.work / kept.capture))


def _took(sweep: Sweep, hands: Hands, point: Point | None, image: str | None, say: Say) -> tuple[Taken, Booted]:
    """Start and measure. `image`: that of the stock pass, which a point must have too."""
    booted = hands.boot(point)
    if point and booted.image != image:
        what = "the image is another than at the stock pass: what differs may be the image's doing"
        raise InvalidMeasurement(f"{what}\ntry: remove {sweep.work}, and measure into another --out")
    taken = take(booted, sweep.asked, sweep.folder, say)
    if not hands.still(booted):
        what = f"boot {booted.boot} was stopped or started anew while it was measured"
        raise InvalidMeasurement(f"{what}\ntry: again, with the kit to itself")
    return taken, booted


def _measured(sweep: Sweep, hands: Hands, stock: Pass, point: Point, say: Say) -> Receipt:
    taken, booted = _took(sweep, hands, point, stock.taken.image, say)
    twin = None if point.control == "twin" else sweep.finished(sweep.points[0])
    floor = twin.served.floor if twin and twin.served else None
    edited = Pass(taken, captures.read(sweep.work / taken.capture), booted.edits)
    made = points.receipt(sweep.id(point), sweep.kit, sweep.asked, point, (stock, edited), floor)
    receipts.write(made, sweep.path(point))
    (sweep.work / taken.capture).unlink(missing_ok=True)
    return made
