"""Figures of performance receipts. Each function takes receipts and gives a figure in the theme in force."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.figures import style
from bench.receipt import Receipt
from bench.spread import Spread

WIDTH = 4.2  # inches; on a telephone the letters are still of 10 pixels


def label(receipt: Receipt) -> str:
    """How a receipt is called in a legend: phase and depth, kit, and the arm unless it is the default one."""
    arm = "" if receipt.arm == "default" else f", {style.short(receipt.arm, 18)}"
    depth = "" if receipt.protocol.depth_tokens is None else f" @{receipt.protocol.depth_tokens}"
    return f"{receipt.protocol.phase}{depth} ({receipt.system.kit or 'server'}{arm})"


def names(receipts: Sequence[Receipt]) -> list[str]:
    """One name per receipt, with its n, its lanes, and its model where there are several."""
    many = len({receipt.model for receipt in receipts}) > 1
    return [_name(receipt, many) for receipt in receipts]


def _name(receipt: Receipt, many: bool) -> str:
    lanes = f", {receipt.protocol.concurrency} lanes" if receipt.protocol.concurrency > 1 else ""
    model = f"{style.short(receipt.model, 24)}\n" if many else ""
    return f"{model}{label(receipt).replace(' (', chr(10) + '(')}\nn = {receipt.summary.runs}{lanes}"


@dataclass(frozen=True)
class _Figure:
    """A figure with one value per run. of: the runs' values; spread: of the summary."""

    title: str
    axis: str
    of: Callable[[Receipt], list[float]]
    spread: Callable[[Receipt], Spread | None]
    scale: float = 1


def _by_receipt(receipts: Sequence[Receipt], what: _Figure) -> Figure:
    """One row per receipt: a point per run, a bar across at the median, a line from slowest to fastest."""
    figure, axes = style.axes_of(WIDTH, style.rows_height(names(receipts)))
    for at, receipt in enumerate(receipts):
        _row(axes, at, [value * what.scale for value in what.of(receipt)], what.spread(receipt), what.scale)
    style.named_rows(axes, names(receipts))
    style.up_from_zero(axes, "x", [value * what.scale for receipt in receipts for value in what.of(receipt)])
    axes.set_xlabel(what.axis)
    style.titled(figure, what.title)
    return figure


def _row(axes: Axes, at: int, values: Sequence[float], spread: Spread | None, scale: float) -> None:
    if spread:
        axes.hlines(at, spread.min * scale, spread.max * scale, color=style.muted(), linewidth=2, zorder=2)
        axes.vlines(spread.median * scale, at - 0.3, at + 0.3, color=style.ink(), linewidth=2, zorder=4)
    axes.scatter(values, [at] * len(values), s=26, color=style.colour(at), zorder=3)


def _decode_rates(receipt: Receipt) -> list[float]:
    return [run.metrics.decode_tok_s for run in receipt.runs if run.metrics.decode_tok_s is not None]


def _first_tokens(receipt: Receipt) -> list[float]:
    return [run.metrics.ttft_s for run in receipt.runs if run.metrics.ttft_s is not None]


_TITLE = "Point = run, bar = median, line = min to max"


def decode_figure(receipts: Sequence[Receipt]) -> Figure:
    """Decode throughput of every run."""
    return _by_receipt(receipts, _Figure(_TITLE, "decode throughput, tok/s", _decode_rates, lambda r: r.summary.decode_tok_s))


def ttft_figure(receipts: Sequence[Receipt]) -> Figure:
    """Time to first token of every run."""
    return _by_receipt(receipts, _Figure(_TITLE, "time to first token, ms", _first_tokens, lambda r: r.summary.ttft_s, 1000))


def acceptance_figure(receipts: Sequence[Receipt]) -> Figure:
    """Per-position acceptance of the receipts that drafted anything."""
    drafting = [receipt for receipt in receipts if receipt.summary.acceptance]
    figure, axes = style.axes_of(WIDTH, 2.8 + 0.34 * len(drafting))
    for at, receipt in enumerate(drafting):
        _acceptance_line(axes, receipt, at)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("draft position")
    axes.set_ylabel("accepted here / drafts")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if drafting:
        figure.legend(loc="outside lower left")
    else:
        style.nothing(axes, "no receipt with speculative decoding")
    return figure


def _acceptance_line(axes: Axes, receipt: Receipt, at: int) -> None:
    acceptance = receipt.summary.acceptance
    if acceptance is None:
        return
    positions = range(1, len(acceptance.per_position) + 1)
    figures = f"rate {acceptance.acceptance_rate:.2f}, length {acceptance.acceptance_length:.2f}"
    name = f"{label(receipt)}: {figures},\nn = {acceptance.drafts} drafts"
    axes.plot(positions, acceptance.per_position, marker=style.marker(at), color=style.colour(at), label=name)


@dataclass(frozen=True)
class Level:
    """A level of concurrency: medians over n rounds (or runs), and the least and largest rate."""

    ttft_s: float
    rate_tok_s: float
    low_tok_s: float
    high_tok_s: float
    lanes: int
    n: int


def latency_figure(receipts: Sequence[Receipt]) -> Figure:
    """Throughput of the whole server against the time to the first token, one point per level of concurrency, lines by kit, phase, arm."""
    series: dict[str, list[Level]] = {}
    for receipt in receipts:
        if point := level(receipt):
            series.setdefault(label(receipt), []).append(point)
    figure, axes = style.axes_of(WIDTH, 3.0 + 0.2 * len(series))
    for at, (name, points) in enumerate(series.items()):
        _levels(axes, at, name, sorted(points, key=lambda point: point.lanes))
    every = [point for points in series.values() for point in points]
    style.up_from_zero(axes, "x", [point.ttft_s for point in every])
    style.up_from_zero(axes, "y", [point.high_tok_s for point in every])
    axes.set_xlabel("time to first token, s (median)")
    axes.set_ylabel("throughput of all lanes, tok/s")
    style.titled(figure, "Number = lanes, line up = min to max")
    if series:
        figure.legend(loc="outside lower left")
    else:
        style.nothing(axes, "no receipt with a throughput")
    return figure


def _levels(axes: Axes, at: int, name: str, points: Sequence[Level]) -> None:
    n = "n = " + ", ".join(dict.fromkeys(str(point.n) for point in points))
    xs, ys = [point.ttft_s for point in points], [point.rate_tok_s for point in points]
    axes.plot(xs, ys, marker=style.marker(at), color=style.colour(at), label=f"{name}, {n}")
    for point in points:
        axes.vlines(point.ttft_s, point.low_tok_s, point.high_tok_s, color=style.colour(at), linewidth=1, alpha=0.7)
        axes.annotate(f"{point.lanes}", (point.ttft_s, point.rate_tok_s), textcoords="offset points", xytext=(5, 4), fontsize=8)


def level(receipt: Receipt) -> Level | None:
    """The receipt's point; None for a phase whose requests differ (cells) and where nothing is known."""
    summary = receipt.summary
    if summary.cells or summary.goodput:
        return None
    if summary.group:
        first, rate = summary.group.ttft_p50_s, summary.group.wall_tok_s
        return Level(first.median, rate.median, rate.min, rate.max, receipt.protocol.concurrency, rate.n) if first and rate else None
    walls = [run.metrics.n_tokens / run.metrics.e2el_s for run in receipt.runs if run.metrics.n_tokens and run.metrics.e2el_s]
    if not summary.ttft_s or not walls:
        return None
    return Level(summary.ttft_s.median, statistics.median(walls), min(walls), max(walls), 1, len(walls))
