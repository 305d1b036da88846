"""Tables of README.md and docs/ that come from the accuracy and the peers receipt; `python -m cli.documents` puts them there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from bench.accuracy import __main__ as accuracy_run
from bench.errors import BenchError
from bench.peers import table

RESULTS = Path(__file__).resolve().parent.parent / "results"
ReceiptT = TypeVar("ReceiptT", bound=BaseModel)


def _read(name: str, model: type[ReceiptT]) -> ReceiptT:
    try:
        return model.model_validate_json((RESULTS / name).read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"no table from results/{name}: {error}") from error


def _peers() -> table.Receipt:
    return _read("peers/peers.json", table.Receipt)


def accuracy() -> str:
    """Error and cost of the clients at each number of streams."""
    return accuracy_run.table(_read("accuracy/accuracy.json", accuracy_run.Receipt)) + "\n"


def peers_summary() -> str:
    """The largest error of each tool's figures."""
    return table.summary_table(_peers()) + "\n"


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
