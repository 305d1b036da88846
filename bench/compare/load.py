"""From receipts to the values of a comparison: which arm and boot each belongs to, and the figures of each endpoint."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.check import check
from bench.errors import InvalidMeasurement
from bench.receipt import Receipt, shown


@dataclass(frozen=True)
class Endpoint:
    """One figure of one receipt and every run's value behind it."""

    name: str
    value: float
    higher_is_better: bool
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Boot:
    """One boot's runs at one endpoint, all receipts of the boot together. first_utc orders the boots; slot: its place in the plan."""

    boot: str
    arm: str
    first_utc: str
    slot: int | None
    runs: tuple[float, ...]

    @property
    def value(self) -> float:
        return statistics.median(self.runs)


def read_sound(paths: Sequence[Path]) -> list[Receipt]:
    """The receipts at `paths`. Raises InvalidMeasurement naming every one that is unsound, invalid, or of no known boot."""
    good, bad = [], []
    for path in paths:
        try:
            receipt = check(path)
        except InvalidMeasurement as error:
            bad.append(str(error))
            continue
        problem = _unusable(receipt)
        if problem:
            bad.append(f"{shown(path)}: {problem}")
        good.append(receipt)
    if bad:
        raise InvalidMeasurement("receipts that cannot be compared:\n" + "\n".join(bad))
    return good


def _unusable(receipt: Receipt) -> str | None:
    if not receipt.valid:
        return f"field valid: marked invalid: {'; '.join(receipt.invalid_because)}"
    if receipt.system.boot is None:
        return "field system.boot: unknown, so fresh boots cannot be told from repeats (measure a server that invoke up started)"
    if primary(receipt) is None:
        return f"field summary: holds no figure of phase {receipt.protocol.phase} to compare"
    return None


def key(receipt: Receipt) -> str:
    """The endpoint a receipt belongs to: its phase, the concurrency above one, and the depth of a prompt that was fitted to one."""
    many, depth = receipt.protocol.concurrency, getattr(receipt.protocol, "depth_tokens", None)
    lanes = "" if many == 1 else f" x{many}"
    return f"{receipt.protocol.phase}{lanes}{'' if depth is None else f' @{depth}'}"


# Phases that have no single figure of their own: what they show is a relation inside the receipt.
NO_PRIMARY = ("prefix", "mixed", "agents", "open-loop")


def primary(receipt: Receipt) -> Endpoint | None:
    """The receipt's main figure, None when unknown: prefill throughput of the phase prefill, decode throughput of single streams, and
    above one stream the rate while all lanes decode, by round."""
    if receipt.protocol.phase in NO_PRIMARY:
        return None
    if receipt.protocol.concurrency > 1:
        return _endpoint("group steady tok/s", _steady(receipt))
    good = [run.metrics for run in receipt.runs if not run.trace.error]
    if receipt.protocol.phase == "prefill":
        return _endpoint("prefill tok/s", [each.prefill_tok_s for each in good])
    return _endpoint("decode tok/s", [each.decode_tok_s for each in good])


def _endpoint(name: str, values: Sequence[float | None]) -> Endpoint | None:
    runs = tuple(value for value in values if value is not None)
    return Endpoint(name, statistics.median(runs), True, runs) if runs else None


def _steady(receipt: Receipt) -> list[float | None]:
    """The steady rate of every round; of a receipt without rounds, the summary's."""
    rounds: Any = getattr(receipt, "rounds", ())
    groups = [each.group for each in rounds if each.group is not None]
    if groups:
        return [each.steady_tok_s for each in groups]
    found: Any = getattr(getattr(receipt.summary, "group", None), "steady_tok_s", None)
    return [getattr(found, "median", found)]


def side_figures(receipts: Sequence[Receipt]) -> dict[str, float | None]:
    """What explains a difference: medians over receipts of TTFT, acceptance length, and the time of one engine step.

    step_s = acceptance length / decode rate, single streams only: a changed rate comes from the drafter or from the step.
    """
    first = [r.summary.ttft_s.median for r in receipts if r.summary.ttft_s]
    length = [r.summary.acceptance.acceptance_length for r in receipts if r.summary.acceptance]
    steps = [
        r.summary.acceptance.acceptance_length / r.summary.decode_tok_s.median
        for r in receipts
        if r.summary.acceptance and r.summary.decode_tok_s and r.protocol.concurrency == 1
    ]
    figures = {"ttft_s": first, "acceptance_length": length, "step_s": steps}
    return {name: statistics.median(values) if values else None for name, values in figures.items()}


def boots(receipts: Sequence[Receipt]) -> list[Boot]:
    """The boots behind the receipts of one endpoint, in the order they ran."""
    by_boot: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        by_boot.setdefault(str(receipt.system.boot), []).append(receipt)
    found = [_boot(name, each) for name, each in by_boot.items()]
    return sorted(found, key=lambda boot: (boot.slot if boot.slot is not None else -1, boot.first_utc))


def _boot(name: str, receipts: list[Receipt]) -> Boot:
    ordered = sorted(receipts, key=lambda receipt: (receipt.created_utc, receipt.id))
    runs = [value for receipt in ordered if (found := primary(receipt)) for value in found.runs]
    first = min(run.started_utc for run in ordered[0].runs)
    return Boot(name, ordered[0].arm, first, ordered[0].plan.slot if ordered[0].plan else None, tuple(runs))
