"""The house style: two themes, and how a figure is drawn and written in them."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

Draw = Callable[[], Figure]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Theme:
    """A background and what is legible on it. colours: Okabe and Ito's palette, for dark paper its lighter half first."""

    name: str
    paper: str
    ink: str
    muted: str
    colours: tuple[str, ...]


LIGHT = Theme("light", "#ffffff", "#1b1f24", "#8b949e", ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#56B4E9"))
DARK = Theme("dark", "#14181d", "#e6e9ec", "#7d8792", ("#56B4E9", "#E69F00", "#2FC79A", "#F0A3CB", "#F0E442", "#FF8A4C"))
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def settings(theme: Theme) -> dict[Any, Any]:
    """matplotlib's settings for the theme."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color", "axes.edgecolor"), theme.ink)
    paper = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper)
    return {
        **ink,
        **paper,
        "font.size": 10,
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.muted,
        "grid.alpha": 0.3,
        "axes.prop_cycle": cycler(color=list(theme.colours)),
        "legend.frameon": False,
        "legend.fontsize": 8,
        "svg.hashsalt": "spark-lab",  # the same receipts give the same file
        "figure.constrained_layout.use": True,
    }


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Figures made and written inside have the theme, and nothing outside does."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.use("Agg")
        matplotlib.rcParams.update(settings(theme))
        yield


def colour(at: int) -> str:
    """The colour of series `at` in the theme in force; from the seventh on they repeat, with another marker."""
    cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    return to_hex(cycle[at % len(cycle)])


def marker(at: int) -> str:
    return MARKERS[at % len(MARKERS)]


def ink() -> str:
    return str(matplotlib.rcParams["text.color"])


def muted() -> str:
    return str(matplotlib.rcParams["grid.color"])


def axes_of(width: float, height: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    return figure, axes


def nothing(axes: Axes, why: str) -> None:
    """Say why a figure is empty."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color=ink())


def short(text: str, most: int = 30) -> str:
    """The text with its middle left out where it is longer than `most`: the ends of a model's name tell it from its kin."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


def written(draw: Draw, path: Path, theme: Theme) -> Path:
    """Draw and write one file; PNG at 150 dots per inch. The same data give the same bytes."""
    with themed(theme):
        figure = draw()
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            plt.close(figure)
    return path


def svg(draw: Draw, theme: Theme) -> bytes:
    """The figure as SVG, letters as shapes: it needs no font where it is shown."""
    text = io.BytesIO()
    with themed(theme):
        figure = draw()
        try:
            figure.savefig(text, format="svg", metadata={"Date": None})
        finally:
            plt.close(figure)
    return text.getvalue()


def titled(figure: Figure, title: str) -> None:
    """A title over the whole figure, in lines that fit its width: over narrow axes it would be cut off."""
    figure.suptitle(textwrap.fill(title, int(figure.get_figwidth() * 13)), x=0.01, ha="left", fontsize=10)


def up_from_zero(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """The axis ("x" or "y") from 0 to a little beyond the largest value, so that no mark is cut."""
    top = 1.08 * max(values, default=1) or 1
    (axes.set_xlim if axis == "x" else axes.set_ylim)(0, top)


def rows_height(names: Sequence[str]) -> float:
    """Inches for a figure of one row per name, names of several lines included."""
    lines = max((name.count("\n") + 1 for name in names), default=1)
    return 1.1 + (0.12 + 0.165 * lines) * max(len(names), 2)


def named_rows(axes: Axes, names: Sequence[str]) -> None:
    """One line per name, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
