"""What the notebooks call: receipts in, tables and figures that show themselves. Needs no server but for `invoke`."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from bench import grid as grids
from bench import quality
from bench.campaign.runner import finished, opened
from bench.check import check
from bench.compare import build
from bench.compare.model import Comparison
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.figures.style import DARK, LIGHT, Draw, svg
from bench.grid import Grid
from bench.kinds import registry
from bench.kinds import show as shows
from bench.kinds.registry import WORDS, Pile
from bench.quality import AblationPoint
from bench.receipt import Receipt
from bench.report import html

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


@dataclass(frozen=True)
class Shown:
    """HTML that a notebook shows as it is, and the same as text for everything else."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def pile(*words: str, results: Path = RESULTS) -> Pile:
    """The sound receipts of the kinds `words` (none: all); says how many there are, and names each that was left out."""
    found = registry.load(registry.documents(results), words or WORDS)
    print(f"{len(found.found)} receipts, {len(found.left_out)} left out")
    for line in found.left_out:
        print(f"left out: {line}")
    return found


@dataclass(frozen=True)
class Which:
    """What a receipt must be; None fits all. since: the earliest day. planned False: without those of a plan."""

    kit: str | None = None
    phase: str | None = None
    arm: str | None = None
    lanes: int | None = None
    since: str = ""
    planned: bool = True

    def fits(self, receipt: Receipt) -> bool:
        wanted = (self.kit, self.phase, self.arm, self.lanes)
        is_ = (receipt.system.kit, receipt.protocol.phase, receipt.arm, receipt.protocol.concurrency)
        alike = all(want in (None, found) for want, found in zip(wanted, is_, strict=True))
        return alike and receipt.created_utc >= self.since and (self.planned or receipt.plan is None)


def choose(receipts: Sequence[Receipt], which: Which) -> list[Receipt]:
    """The receipts that fit, in their order."""
    return [receipt for receipt in receipts if which.fits(receipt)]


def show(grid: Grid) -> Shown:
    """A table."""
    if not grid.rows:
        return Shown("<p>nothing yet</p>", "nothing yet")
    return Shown(html.table(grid, grid.title or "table"), grids.markdown(grid))


def tables(pile: Pile, word: str) -> Shown:
    """The table of one kind of receipt, whether this version knows the kind or not."""
    kinds = [kind for kind in registry.KINDS if kind.word == word and pile.of(word)]
    return show(shows.grid_of(pile, kinds[0])) if kinds else show(Grid((), ()))


def figure(draw: Draw) -> Shown:
    """A figure that follows the reader's light or dark setting."""
    sources = [html.uri(svg(draw, theme)) for theme in (DARK, LIGHT)]
    dark = f'<source srcset="{sources[0]}" media="(prefers-color-scheme: dark)">'
    return Shown(f'<picture>{dark}<img src="{sources[1]}" alt="figure" style="max-width: 36rem; width: 100%"></picture>', "figure")


def by_kit(draw: Callable[[Sequence[Receipt]], Any], receipts: Sequence[Receipt]) -> Shown:
    """The figure once for each kit: figures of different kits are not drawn together."""
    kits = list(dict.fromkeys(receipt.system.kit for receipt in receipts))
    parts = [(kit, [receipt for receipt in receipts if receipt.system.kit == kit]) for kit in kits]
    shown = [f"<h4>{kit or 'other servers'}</h4>{figure(partial(draw, own)).html}" for kit, own in parts]
    return Shown("".join(shown) or "<p>no receipt</p>", f"{len(kits)} figures")


def by_direction(draw: Callable[[Sequence[AblationPoint]], Any], points: Sequence[AblationPoint]) -> Shown:
    """The figure once for each direction and basis, without controls."""
    named = [(f"{name} {own[0].basis.where}, n = {own[0].basis.prompts} prompts", own) for name, own in quality.by_direction(points)]
    return _each(draw, named)


def by_basis(draw: Callable[[Sequence[AblationPoint]], Any], points: Sequence[AblationPoint]) -> Shown:
    """The figure once for each set of points that may share a front, with the controls."""
    return _each(draw, [(basis.name, own) for basis, own in quality.by_basis(points)])


def _each(draw: Callable[[Sequence[AblationPoint]], Any], parts: Sequence[tuple[str, list[AblationPoint]]]) -> Shown:
    shown = [f"<h4>{escape(name)}</h4>{figure(partial(draw, own)).html}" for name, own in parts]
    return Shown("".join(shown) or "<p>no point</p>", f"{len(parts)} figures")


def invoke(*words: str | Path) -> None:
    """Run `invoke WORDS` and print its lines as they come. Raises BenchError unless it ends well (0) or undecided (4)."""
    argv = [sys.executable, "-u", "-m", "invoke", *map(str, words)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in process.stdout or ():
            print(line, end="", flush=True)
    except KeyboardInterrupt:
        process.wait()  # it has had the same Ctrl-C and cleans up
        raise
    if process.wait() not in (0, 4):
        raise BenchError(f"invoke {' '.join(map(str, words))} ended with {process.returncode}")


def new_campaign(kit: str) -> Path:
    """The folder for a new plan, named by the moment."""
    return RESULTS / "campaigns" / f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{kit}"


def newest_campaign(kit: str, results: Path = RESULTS) -> Path:
    """The folder of the kit's newest plan whose slots are all filled. Raises BadRequest when there is none."""
    plans = [opened(path) for path in sorted((results / "campaigns").glob("*/plan.json"))]
    whole = [each for each in plans if each.plan.kit == kit and len(finished(each)) == len(each.plan.order)]
    if not whole:
        raise BadRequest(f"no finished plan of kit {kit} under results/campaigns/\ntry: RUN = True, or invoke bench-plan and bench-run")
    return max(whole, key=lambda each: each.plan.created_utc).folder


def receipts_of(folder: Path) -> list[Receipt]:
    """The receipts of a campaign's finished slots, each checked, in the order of the slots. Raises InvalidMeasurement."""
    return [check(path) for _, made in sorted(finished(opened(folder)).items()) for path in made]


def verdict(folder: Path) -> Comparison:
    """What the plan in `folder` has found so far, by its own rules. Raises InvalidMeasurement for receipts that must not be compared."""
    receipts = receipts_of(folder)
    if not receipts:
        raise InvalidMeasurement(f"{folder.name}: no slot is filled yet\ntry: invoke bench-run {folder}")
    return build.compare(build.of_plan(opened(folder), receipts))
