"""A kit that is only noted down: what was started in which order. The server behind it is real (vllm_like.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ablit.grid import Grid
from ablit.prompts import Prompts
from ablit.receipt import Model
from ablit.served import direction as directions
from ablit.served.ask import Server
from ablit.served.direction import Direction
from ablit.served.facts import RankEdit
from ablit.served.measure import Asked, Booted
from ablit.served.point import Kit, Point
from ablit.served.sweep import Sweep, points_of
from ablit.spec import shown
from tests.ablit.served.vllm_like import Script

HIDDEN = 8
MODEL = Model(name="tiny", sha256="a" * 64, layers=4, hidden=HIDDEN, dtype="float32")
PROMPTS = Prompts("held.txt", ("Why is the sky blue?", "What is a hash map?", "Why do cats purr?", "What is rain?"), "b" * 64)


def direction(values: Sequence[float] = (3, 4, 0, 0, 0, 0, 0, 0)) -> Direction:
    vectors = np.array(values, np.float32)
    content = directions.written(vectors, {})
    digest = hashlib.sha256(content).hexdigest()
    return Direction(digest, content, vectors, {"name": "brief-2", "sha256": digest})


def kit(**changed: object) -> Kit:
    plain: dict[str, object] = {"name": "pair", "engine": "vllm in x", "ranks": 2, "settings": {"port": 1}, "model": MODEL}
    return Kit(**{**plain, **changed})  # type: ignore[arg-type]


def sweep(folder: Path, **changed: object) -> Sweep:
    """Twin, one control, one point."""
    asked = Asked((PROMPTS,), "brief", 16, 1, 3, 0)
    points = points_of(Grid(((1, 2),), (2.0,), (2.0,), seeds=(0,)), direction())
    plain: dict[str, object] = {"kit": kit(), "asked": asked, "points": points, "panel_sha256": "c" * 64, "folder": folder}
    return Sweep(**{**plain, **changed})  # type: ignore[arg-type]


@dataclass
class Hands:
    """`done`: every call, in order. `fault`: called with the point before each start. Starts are called b1, b2, ..."""

    script: Script
    url: str
    done: list[str] = field(default_factory=list)
    fault: Callable[[Point | None], None] = lambda point: None
    image: Callable[[int], str] = lambda number: "image"
    last: str = ""
    count: int = 0

    def place(self, directions: Sequence[Direction]) -> None:
        self.done.append("place " + " ".join(sorted({each.file for each in directions})))

    def boot(self, point: Point | None) -> Booted:
        what = "stock" if point is None else f"{point.control or 'point'} {point.spec.alpha:g}"
        self.done.append(what)
        self.fault(point)
        self.count += 1
        self.last = f"b{self.count}"
        self.script.edited = bool(point and not point.spec.is_null)
        edits = tuple(rank_edit(rank, point) for rank in (0, 1)) if point and not point.spec.is_null else ()
        return Booted(Server(self.url, "tiny"), self.last, self.image(self.count), {}, edits)

    def still(self, booted: Booted) -> bool:
        return booted.boot == self.last

    def put_back(self) -> None:
        self.done.append("put back")


def rank_edit(rank: int, point: Point, **changed: object) -> RankEdit:
    alpha = point.spec.alpha
    plain = {"rank": rank, "world": 2, "part": "model", "method": "proj", "alpha": alpha, "layers": shown(point.spec.layers)}
    more = {"source": point.direction.sha256, "ratio": (1 - alpha, 1 - alpha), "rel_l2": (0.1, 0.2)}
    return RankEdit.model_validate({**plain, **more, **changed})
