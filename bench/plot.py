"""Receipts as figures. The only module that imports matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.errors import InvalidMeasurement
from bench.receipt import Receipt

# Okabe and Ito's palette: told apart with every common form of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "spark-lab",  # the same receipts give the same file
    "figure.constrained_layout.use": True,
}


def label(receipt: Receipt) -> str:
    """How a receipt is called in a legend: phase and depth, kit, and the arm unless it is the default one."""
    arm = "" if receipt.arm == "default" else f", {receipt.arm}"
    depth = "" if receipt.protocol.depth_tokens is None else f" @{receipt.protocol.depth_tokens}"
    return f"{receipt.protocol.phase}{depth} ({receipt.system.kit or 'server'}{arm})"


def decode_figure(receipts: Sequence[Receipt]) -> Figure:
    """Decode throughput of every run, one column per receipt, with the median as a bar across."""
    figure, axes = plt.subplots(figsize=(max(4.5, 1.7 * len(receipts) + 1.5), 4))
    for at, receipt in enumerate(receipts):
        values = [run.metrics.decode_tok_s for run in receipt.runs if run.metrics.decode_tok_s is not None]
        offsets = [at + 0.06 * (i - (len(values) - 1) / 2) for i in range(len(values))]
        axes.scatter(offsets, values, s=28, color=COLOURS[at % len(COLOURS)], zorder=3)
        if receipt.summary.decode_tok_s:
            axes.hlines(receipt.summary.decode_tok_s.median, at - 0.3, at + 0.3, color="black", linewidth=1.5, zorder=4)
    names = [_column(receipt) for receipt in receipts]
    axes.set_xticks(range(len(receipts)), names)
    axes.set_xlim(-0.6, len(receipts) - 0.4)
    axes.set_ylim(0, 1.08 * max((r.summary.decode_tok_s.max for r in receipts if r.summary.decode_tok_s), default=1))
    axes.set_ylabel("decode throughput, tok/s")
    axes.set_title("One point per run, bar = median")
    return figure


def _column(receipt: Receipt) -> str:
    lanes = f", {receipt.protocol.concurrency} lanes" if receipt.protocol.concurrency > 1 else ""
    return f"{label(receipt).replace(' (', chr(10) + '(')}\nn = {receipt.summary.runs}{lanes}"


def acceptance_figure(receipts: Sequence[Receipt]) -> Figure:
    """Per-position acceptance of the receipts that drafted anything."""
    drafting = [receipt for receipt in receipts if receipt.summary.acceptance]
    figure, axes = plt.subplots(figsize=(6, 4))
    for at, receipt in enumerate(drafting):
        _acceptance_line(axes, receipt, COLOURS[at % len(COLOURS)])
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("draft position")
    axes.set_ylabel("accepted at this position / drafts")
    axes.set_title("Per-position acceptance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if drafting:
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no receipt with speculative decoding", transform=axes.transAxes, ha="center")
    return figure


def _acceptance_line(axes: Axes, receipt: Receipt, colour: str) -> None:
    acceptance = receipt.summary.acceptance
    if acceptance is None:
        return
    positions = range(1, len(acceptance.per_position) + 1)
    name = f"{label(receipt)}: rate {acceptance.acceptance_rate:.2f}, length {acceptance.acceptance_length:.2f}, {acceptance.drafts} drafts"
    axes.plot(positions, acceptance.per_position, marker="o", color=colour, label=name)


def latency_figure(receipts: Sequence[Receipt]) -> Figure:
    """Throughput of the whole server against the time to the first token, one point per level of concurrency, lines by kit, phase, arm."""
    figure, axes = plt.subplots(figsize=(6, 4))
    series: dict[str, list[tuple[float, float, int]]] = {}
    for receipt in receipts:
        point = _level(receipt)
        if point:
            series.setdefault(label(receipt), []).append(point)
    for at, (name, points) in enumerate(series.items()):
        points.sort(key=lambda point: point[2])
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", color=COLOURS[at % len(COLOURS)], label=name)
        for x, y, lanes in points:
            axes.annotate(f"{lanes}", (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("TTFT, s (median of the rounds)")
    axes.set_ylabel("wall throughput of all lanes, tok/s")
    axes.set_title("Throughput against latency; numbers are lanes")
    if series:
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.text(0.5, 0.5, "no receipt with a throughput", transform=axes.transAxes, ha="center")
    return figure


def _level(receipt: Receipt) -> tuple[float, float, int] | None:
    """(TTFT, wall throughput, lanes), both medians over rounds; None for a phase whose requests differ (cells)."""
    summary = receipt.summary
    if summary.cells or summary.goodput:
        return None
    if summary.group:
        first, rate = summary.group.ttft_p50_s, summary.group.wall_tok_s
        return (first.median, rate.median, receipt.protocol.concurrency) if first and rate else None
    walls = [run.metrics.n_tokens / run.metrics.e2el_s for run in receipt.runs if run.metrics.n_tokens and run.metrics.e2el_s]
    return (summary.ttft_s.median, statistics.median(walls), 1) if summary.ttft_s and walls else None


def write(receipts: Sequence[Receipt], folder: Path) -> list[Path]:
    """All figures as PNG (150 dpi) and SVG into `folder`; the paths written. Raises InvalidMeasurement without receipts."""
    if not receipts:
        raise InvalidMeasurement("no valid receipt to plot\ntry: invoke bench")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, draw in (("decode", decode_figure), ("acceptance", acceptance_figure), ("latency", latency_figure)):
            figure = draw(receipts)
            for kind in ("png", "svg"):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
                written.append(path)
            plt.close(figure)
    return written
