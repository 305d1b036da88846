"""Figures of comparison receipts: the change with its interval, and every boot in the order in which it ran."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.compare.model import BootValue, Comparison, EndpointResult
from bench.figures import style
from bench.figures.performance import WIDTH


def change_figure(comparisons: Sequence[Comparison]) -> Figure:
    """One row per endpoint: the change of B against A in percent with its interval, and the margin as a band."""
    rows = [(found, endpoint) for found in comparisons for endpoint in found.endpoints]
    names = [_row_name(found, endpoint) for found, endpoint in rows]
    figure, axes = style.axes_of(WIDTH, style.rows_height(names))
    for at, (found, endpoint) in enumerate(rows):
        _change(axes, at, endpoint, found.margin)
    axes.axvline(0, color=style.ink(), linewidth=1)
    style.named_rows(axes, names)
    axes.set_xlabel("change of B against A, percent")
    style.titled(figure, "Line = interval (arrow: open end), grey band = margin")
    return figure


def _row_name(found: Comparison, endpoint: EndpointResult) -> str:
    arms = f"{style.short(found.a.name, 14)} → {style.short(found.b.name, 14)}"
    return f"{endpoint.name}: {endpoint.verdict}\n{arms}\nn = {len(endpoint.a)} + {len(endpoint.b)} boots"


def _change(axes: Axes, at: int, endpoint: EndpointResult, margin: float) -> None:
    low, high = endpoint.interval.low, endpoint.interval.high
    reach = max(abs(100 * value) for value in (endpoint.change, low, high, margin) if value is not None)
    ends = [-2 * reach if low is None else 100 * low, 2 * reach if high is None else 100 * high]
    axes.barh(at, 200 * margin, left=-100 * margin, height=0.7, color=style.muted(), alpha=0.25)
    axes.hlines(at, ends[0], ends[1], color=style.colour(0), linewidth=2)
    for end, value, arrow in ((ends[0], low, "<"), (ends[1], high, ">")):
        axes.plot([end], [at], marker=arrow if value is None else "|", color=style.colour(0), markersize=9)
    axes.plot([100 * endpoint.change], [at], marker="o", color=style.colour(0), markersize=7)


def boots_figure(found: Comparison) -> Figure:
    """Every run of every boot in the order of the boots, one panel per endpoint; the arms by colour and shape."""
    count = len(found.endpoints)
    figure, _ = style.axes_of(WIDTH, 2.6 * count + 0.6)
    figure.clear()
    for at, endpoint in enumerate(found.endpoints):
        panel = figure.add_subplot(count, 1, at + 1)
        _boots(panel, 0, found.a.name, endpoint.a)
        _boots(panel, 1, found.b.name, endpoint.b)
        panel.set_ylabel(endpoint.figure)
        panel.set_title(f"{endpoint.name}: point = run, bar = median of the boot")
        panel.set_xlabel("boot, in the order they ran")
        style.up_from_zero(panel, "y", [run for boot in (*endpoint.a, *endpoint.b) for run in boot.runs])
        panel.set_xticks(range(len(endpoint.a) + len(endpoint.b)))
        panel.set_xticklabels([str(number + 1) for number in range(len(endpoint.a) + len(endpoint.b))])
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2)
    return figure


def _boots(axes: Axes, arm: int, name: str, boots: Sequence[BootValue]) -> None:
    points = [(boot.at, run) for boot in boots for run in boot.runs]
    colour = style.colour(arm)
    said = f"{style.short(name, 24)}, n = {len(boots)} boots"
    axes.scatter([x for x, _ in points], [y for _, y in points], s=22, marker=style.marker(arm), color=colour, label=said, zorder=3)
    for boot in boots:
        axes.hlines(boot.value, boot.at - 0.3, boot.at + 0.3, color=colour, linewidth=2)
