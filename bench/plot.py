"""Receipts as files of figures: PNG and SVG, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from bench.errors import InvalidMeasurement
from bench.figures.comparison import boots_figure, change_figure
from bench.figures.performance import acceptance_figure, decode_figure, label, latency_figure, ttft_figure
from bench.figures.quality import pareto_figure, sweep_figure
from bench.figures.style import DARK, LIGHT, THEMES, Draw, written
from bench.quality import AblationPoint, by_basis, by_direction
from bench.receipt import Receipt

__all__ = [
    "DARK",
    "LIGHT",
    "PERFORMANCE",
    "Named",
    "acceptance_figure",
    "boots_figure",
    "change_figure",
    "decode_figure",
    "label",
    "latency_figure",
    "ttft_figure",
    "write",
    "write_ablation",
    "write_figure",
]


@dataclass(frozen=True)
class Named:
    """A figure of performance receipts: its file's name and what it shows, in words for those who cannot see it."""

    name: str
    title: str
    draw: Callable[[Sequence[Receipt]], Figure]


PERFORMANCE = (
    Named("decode", "Decode throughput", decode_figure),
    Named("ttft", "Time to first token", ttft_figure),
    Named("acceptance", "Acceptance by draft position", acceptance_figure),
    Named("latency", "Throughput against latency", latency_figure),
)


def write_figure(draw: Draw, folder: Path, name: str) -> list[Path]:
    """One figure as NAME.png, NAME.svg, NAME-dark.png and NAME-dark.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = {"light": "", "dark": "-dark"}
    return [written(draw, folder / f"{name}{ends[theme]}.{kind}", THEMES[theme]) for theme in ends for kind in ("png", "svg")]


def write(receipts: Sequence[Receipt], folder: Path) -> list[Path]:
    """All figures of performance receipts into `folder`; the paths written. Raises InvalidMeasurement without receipts."""
    if not receipts:
        raise InvalidMeasurement("no valid receipt to plot\ntry: invoke bench")
    return [path for figure in PERFORMANCE for path in write_figure(partial(figure.draw, receipts), folder, figure.name)]


def write_ablation(points: Sequence[AblationPoint], folder: Path) -> list[Path]:
    """Effect against KLD of each basis as pareto, pareto-2, ..., and the heat map of each of its directions as sweep, sweep-2, ...; the
    paths written. Raises InvalidMeasurement without points."""
    if not points:
        raise InvalidMeasurement("no valid ablation receipt to plot\ntry: invoke ablit.sweep")
    fronts = [partial(pareto_figure, some) for _, some in by_basis(points)]
    sweeps = [partial(sweep_figure, some) for _, some in by_direction(points)]
    named = [(name, at, draw) for name, some in (("pareto", fronts), ("sweep", sweeps)) for at, draw in enumerate(some, 1)]
    return [path for name, at, draw in named for path in write_figure(draw, folder, f"{name}-{at}" if at > 1 else name)]
