"""Receipts as figures. The only module that imports matplotlib."""

from __future__ import annotations

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
    """How a receipt is called in a legend: phase, kit, and the arm unless it is the default one."""
    arm = "" if receipt.arm == "default" else f", {receipt.arm}"
    return f"{receipt.protocol.phase} ({receipt.system.kit or 'server'}{arm})"


def decode_figure(receipts: Sequence[Receipt]) -> Figure:
    """Decode throughput of every run, one column per receipt, with the median as a bar across."""
    figure, axes = plt.subplots(figsize=(max(4.5, 1.7 * len(receipts) + 1.5), 4))
    for at, receipt in enumerate(receipts):
        values = [run.metrics.decode_tok_s for run in receipt.runs if run.metrics.decode_tok_s is not None]
        offsets = [at + 0.06 * (i - (len(values) - 1) / 2) for i in range(len(values))]
        axes.scatter(offsets, values, s=28, color=COLOURS[at % len(COLOURS)], zorder=3)
        if receipt.summary.decode_tok_s:
            axes.hlines(receipt.summary.decode_tok_s.median, at - 0.3, at + 0.3, color="black", linewidth=1.5, zorder=4)
    names = [f"{label(receipt).replace(' (', chr(10) + '(')}\nn = {receipt.summary.runs}" for receipt in receipts]
    axes.set_xticks(range(len(receipts)), names)
    axes.set_xlim(-0.6, len(receipts) - 0.4)
    axes.set_ylim(0, 1.08 * max((r.summary.decode_tok_s.max for r in receipts if r.summary.decode_tok_s), default=1))
    axes.set_ylabel("decode throughput, tok/s")
    axes.set_title("One point per run, bar = median")
    return figure


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


def write(receipts: Sequence[Receipt], folder: Path) -> list[Path]:
    """Both figures as PNG (150 dpi) and SVG into `folder`; the paths written. Raises InvalidMeasurement without receipts."""
    if not receipts:
        raise InvalidMeasurement("no valid receipt to plot\ntry: invoke bench")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, draw in (("decode", decode_figure), ("acceptance", acceptance_figure)):
            figure = draw(receipts)
            for kind in ("png", "svg"):
                path = folder / f"{name}.{kind}"
                figure.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
                written.append(path)
            plt.close(figure)
    return written
