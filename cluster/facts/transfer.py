"""What a short transfer between two nodes moved, and how perftest prints it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Transfer:
    """One direction between two nodes. way: "TCP" or "ib_write_bw DEVICE". link_gbit_s: what the slower end's link says, None: unknown.

    moved_bytes and seconds are None for ib_write_bw, which tells a rate only. problem: why nothing was measured.
    """

    sender: str
    receiver: str
    way: str
    link_gbit_s: float | None
    gbit_s: float | None = None
    moved_bytes: int | None = None
    seconds: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Transfers:
    """asked: whether transfers were asked for. refused: role -> what runs there, so that nothing was measured."""

    asked: bool = False
    done: tuple[Transfer, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def perftest_gbit_s(text: str) -> float | None:
    """The average rate of `ib_write_bw --report_gbits`: bytes, iterations, peak, average, messages; the last such row."""
    rows = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", text, re.MULTILINE)
    return float(rows[-1]) if rows else None
