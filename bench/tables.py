"""Tables of README.md and docs/ that come from the accuracy and the peers receipt; `python -m cli.documents` puts them there."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from bench.accuracy import __main__ as accuracy_run
from bench.errors import BenchError
from bench.peers import table
from bench.peers.ours import PEER

RESULTS = Path(__file__).resolve().parent.parent / "results"
ReceiptT = TypeVar("ReceiptT", bound=BaseModel)


def _read(name: str, model: type[ReceiptT]) -> ReceiptT:
    try:
        return model.model_validate_json((RESULTS / name).read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"no table from results/{name}: {error}") from error


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def _peers() -> table.Receipt:
    return _read("peers/peers.json", table.Receipt)


def accuracy() -> str:
    """Error and cost of the clients at each number of streams, and which goals were missed."""
    receipt = _read("accuracy/accuracy.json", accuracy_run.Receipt)
    return f"{accuracy_run.table(receipt)}\n\n{_wrapped(accuracy_run.verdict(receipt))}\n"


def peers_summary() -> str:
    """The largest error of each tool's figures, and whether the goal of the CPU time is met."""
    receipt = _peers()
    verdict = table.cost_verdict(receipt, PEER.name)
    return table.summary_table(receipt) + "\n" + (f"\n{_wrapped(verdict + '.')}\n" if verdict else "")


def peers() -> str:
    """Every tool's figures in every case."""
    return table.table(_peers()) + "\n"


def peers_cost() -> str:
    """CPU time of every tool."""
    return table.cost_table(_peers()) + "\n"


def peers_live() -> str:
    """The tools beside each other on a real server."""
    return _live(table.live_table)


def peers_live_summary() -> str:
    """The largest error of each tool's figures there."""
    return _live(table.live_summary)


def _live(write: Callable[[table.Receipt], str]) -> str:
    receipt = _peers()
    return (write(receipt) if receipt.live else "Not measured in this receipt.") + "\n"
