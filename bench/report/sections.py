"""The page's sections, each from a pile of receipts. A section that has nothing to show says what would fill it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from bench import beside, plot, quality
from bench import table as tables
from bench.figures import comparison as comparison_figures
from bench.figures import quality as quality_figures
from bench.grid import Grid
from bench.kinds import registry, show
from bench.kinds.registry import Pile
from bench.quality import AblationPoint, KldPoint
from bench.receipt import Receipt
from bench.report import html


@dataclass(frozen=True)
class Section:
    """anchor: its address in the page. body: pile, folder of the page -> HTML."""

    anchor: str
    heading: str
    body: Callable[[Pile, Path], str]


def _documents(pile: Pile, word: str) -> list[Any]:
    return [each.document for each in pile.of(word)]


def _verdicts(pile: Pile, folder: Path) -> str:
    found = _documents(pile, "comparison")
    if not found:
        return html.paragraph("No comparison receipt yet; invoke bench-plan, bench-run and compare --out write one.")
    parts = [html.paragraph(f"{each.a.name} against {each.b.name}: {each.verdict}. {each.scope}") for each in found]
    parts.append(html.table(show.grid_of(pile, registry.by_word("comparison")), "Verdicts"))
    drawn = [html.figure(partial(comparison_figures.change_figure, found), "Change", "B against A, by endpoint, with interval and margin")]
    for each in found:
        name = f"Boots of {each.a.name} and {each.b.name}"
        drawn.append(html.figure(partial(comparison_figures.boots_figure, each), name, "Every run, in the order of the boots"))
    return "".join([*parts, html.figures(drawn)])


def _alone(pile: Pile) -> list[Receipt]:
    """The performance receipts that are no part of a plan; those are summed up by their comparison."""
    return [receipt for receipt in _documents(pile, "performance") if receipt.plan is None]


def _performance(pile: Pile, folder: Path) -> str:
    receipts = _alone(pile)
    if not receipts:
        return html.paragraph("No valid performance receipt yet; invoke bench writes one.")
    kits = list(dict.fromkeys(receipt.system.kit for receipt in receipts))
    return "".join(_of_kit(kit, [receipt for receipt in receipts if receipt.system.kit == kit]) for kit in kits)


def _of_kit(kit: str | None, receipts: Sequence[Receipt]) -> str:
    """One kit by itself: figures of different kits are never drawn together."""
    name = f"Kit {kit}" if kit else "Servers that this tool did not start"
    drawn = [html.figure(partial(one.draw, receipts), one.title, f"{name}, {len(receipts)} receipts") for one in plot.PERFORMANCE]
    return f"<h3>{escape(name)}</h3>{html.table(tables.grid(receipts), name)}{html.figures(drawn)}"


def _beside(pile: Pile, folder: Path) -> str:
    return html.table(beside.grid(_alone(pile)), "Ours beside published figures")


def _foreign(pile: Pile, folder: Path) -> str:
    if not pile.of("foreign"):
        return html.paragraph("No imported result of another tool; invoke receipt.import FILE takes one in.")
    notes = [html.paragraph(f"{each.source_file}: {note}", "note") for each in _documents(pile, "foreign") for note in each.notes]
    return html.table(show.grid_of(pile, registry.by_word("foreign")), "Figures of other tools") + "".join(notes)


def kld_points(pile: Pile) -> list[KldPoint]:
    """Those of every kind that has some, then the published ones."""
    return [*registry.points(pile, KldPoint), *quality.published()]


def _kld(pile: Pile, folder: Path) -> str:
    points = kld_points(pile)
    drawn = [
        html.figure(partial(quality_figures.kld_figure, points), "KLD panel", "Mean KLD with interval and noise floor"),
        html.figure(partial(quality_figures.size_figure, points), "Size against KLD", "One series for each protocol"),
    ]
    none = "" if any(point.ours for point in points) else html.paragraph("No KLD receipt of ours yet.")
    return none + html.table(quality.kld_grid(points), "KLD panel") + html.figures(drawn)


def _ablation(pile: Pile, folder: Path) -> str:
    points = registry.points(pile, AblationPoint)
    if not points:
        return html.paragraph("No ablation receipt yet; invoke ablit.sweep writes some.")
    kinds = [kind for kind in registry.KINDS if kind.word == "ablation"]
    shown = [html.table(show.grid_of(pile, kind), "Ablation") for kind in kinds if pile.of(kind.word)]
    return "".join([*shown, *(_of_basis(basis.name, some) for basis, some in quality.by_basis(points))])


def _of_basis(name: str, points: Sequence[AblationPoint]) -> str:
    """The points that may share a front: only these are ever drawn together."""
    drawn = [html.figure(partial(quality_figures.pareto_figure, points), "Effect against KLD", "random directions as controls")]
    for direction, some in quality.by_direction(points):
        said = f"Direction {direction}: effect over layers and alpha" if direction else "effect over layers and alpha"
        drawn.append(html.figure(partial(quality_figures.sweep_figure, some), "Sweep", said))
    return f"<h3>{escape(name)}</h3>{html.figures(drawn)}"


def _receipts(pile: Pile, folder: Path) -> str:
    left = "".join(f"<li>{escape(line)}</li>" for line in pile.left_out)
    out = f'<p class="warn">Left out: {len(pile.left_out)}</p><ul>{left}</ul>' if pile.left_out else html.paragraph("Left out: none.")
    rows = [(each.path.name, os.path.relpath(each.path, folder), each.card.seal or "none: foreign") for each in pile.found]
    return out + (html.links(rows) if rows else html.paragraph("No sound receipt at all."))


SECTIONS = (
    Section("verdicts", "Verdicts", _verdicts),
    Section("performance", "Performance", _performance),
    Section("published", "Beside published figures", _beside),
    Section("foreign", "Figures of other tools", _foreign),
    Section("kld", "KLD", _kld),
    Section("ablation", "Ablation", _ablation),
    Section("receipts", "Receipts", _receipts),
)


def overview(pile: Pile) -> Grid:
    """How many receipts of each kind there are, and the days from the first to the last."""
    rows = []
    for kind in registry.KINDS:
        days = sorted(each.card.created_utc[:10] for each in pile.of(kind.word) if each.card.created_utc)
        rows.append((kind.title, str(len(pile.of(kind.word))), " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "-"))
    return Grid(("kind", "receipts", "measured"), tuple(rows))
