"""Which points are worth having: less of the behaviour at less KLD. Pure.

A point is dominated only when another is no worse in both and better in one beyond the intervals; inside them nothing is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablit.receipt import Receipt, check
from bench.errors import InvalidMeasurement


@dataclass(frozen=True)
class Gate:
    """A condition on a summary figure as data: `figure` is a key of `figures`; the value must lie within, and one that is not known does
    not."""

    figure: str
    low: float = float("-inf")
    high: float = float("inf")

    def holds(self, receipt: Receipt) -> bool:
        value = figures(receipt)[self.figure]
        return value is not None and self.low <= value <= self.high


# p is two-sided: `net` asks that more prompts lost the behaviour than gained it
GATES = (Gate("kld", high=0.1), Gate("p", high=0.01), Gate("net", low=1), Gate("unsound_share", high=0.25))


@dataclass(frozen=True)
class Row:
    """One receipt in the comparison. `front`: no other point dominates it; `failed`: names of the gates that it misses."""

    receipt: Receipt
    front: bool
    failed: tuple[str, ...]


def figures(receipt: Receipt) -> dict[str, float | None]:
    """What gates can ask for, of the first side (the one whose behaviour the direction is about)."""
    summary, side = receipt.summary, receipt.summary.sides[0]
    count = len(receipt.behaviour[0].edited)
    return {
        "kld": summary.kld,
        "p": side.p,
        "net": side.lost - side.gained,
        "rate": side.rate,
        "unsound_share": side.unsound / count,
        "acceptance": summary.acceptance,
        "first_token_kld": side.first_token_kld,
    }


def dominates(a: Receipt, b: Receipt) -> bool:
    """a's KLD and rate are both no higher than b's, and one of them is lower beyond the intervals: a's upper limit under b's lower."""
    rates, costs = (a.summary.sides[0], b.summary.sides[0]), (a.summary, b.summary)
    if rates[0].rate > rates[1].rate or costs[0].kld > costs[1].kld:
        return False
    surely_rarer = rates[0].interval[1] < rates[1].interval[0]
    surely_cheaper = _upper(costs[0].kld, costs[0].kld_interval) < _lower(costs[1].kld, costs[1].kld_interval)
    return surely_rarer or surely_cheaper


def _upper(value: float, interval: tuple[float, float] | None) -> float:
    return interval[1] if interval else value


def _lower(value: float, interval: tuple[float, float] | None) -> float:
    return interval[0] if interval else value


def rows(receipts: Sequence[Receipt], gates: Sequence[Gate] = GATES) -> list[Row]:
    """In order of KLD. Controls take no part in the front. Raises InvalidMeasurement when the receipts cannot be compared."""
    comparable(receipts)
    real = [receipt for receipt in receipts if receipt.control is None]
    found = []
    for receipt in sorted(receipts, key=lambda each: (each.summary.kld, each.id)):
        front = receipt.control is None and not any(dominates(other, receipt) for other in real)
        found.append(Row(receipt, front, tuple(gate.figure for gate in gates if not gate.holds(receipt))))
    return found


def comparable(receipts: Sequence[Receipt]) -> None:
    """One model, one panel, the same held-out prompts and reply length; in process, or one kit with one set of settings; one support.

    Raises InvalidMeasurement naming what differs.
    """
    for receipt in receipts[1:]:
        for field, a, b in zip(BASIS, basis(receipts[0]), basis(receipt), strict=True):
            if a != b:
                raise InvalidMeasurement(
                    f"receipts {receipts[0].id} and {receipt.id} differ in field {field}: they do not belong to one front\n"
                    "try: name the receipts of one sweep"
                )


BASIS = ("model", "kit", "support", "panel", "prompts")


def basis(receipt: Receipt) -> tuple[object, ...]:
    """What points of one front have in common: the fields of BASIS, prompts with their judge."""
    panel, at = (receipt.panel.texts_sha256, len(receipt.panel.windows)), receipt.served
    kit = (at.kit, at.ranks, at.settings_sha256) if at else None
    prompts = tuple((s.file_sha256, s.classifier, s.reply_tokens, len(s.edited)) for s in receipt.behaviour)
    return receipt.model, kit, at.k if at else None, panel, prompts


def load(paths: Sequence[Path]) -> tuple[list[Receipt], list[str]]:
    """The sound receipts among `paths`, and one line for each that was left out."""
    good, left_out = [], []
    for path in paths:
        try:
            good.append(check(path))
        except InvalidMeasurement as error:
            left_out.append(str(error))
    return good, left_out
