"""Receipts of made-up boots, sealed and sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.compare.load import Boot
from bench.compare.verdict import Pair
from bench.derive import derived
from bench.receipt import Receipt, Slot, System, seal, write
from tests.bench.samples import run, sample


def receipt(arm: str, boot: str, at: int, rates: Sequence[float], *, phase: str = "prose", **changes: Any) -> Receipt:
    """A boot's receipt: `at` orders boots in time. changes: fields of the payload, or `system_NAME` / `protocol_NAME` of its parts."""
    runs = [run(i, rate).model_copy(update={"started_utc": f"2026-11-29T12:{at:02}:{i:02}.000+00:00"}) for i, rate in enumerate(rates)]
    made = sample(*runs, arm=arm, phase=phase)
    system = System(kit="local", boot=boot, engine="e 1", weights={"sha256": "w"}, settings={"spec_method": arm}, hardware={"cpu": "x"})
    parts: dict[str, Any] = {"system": system, "protocol": made.protocol}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if part in parts:
            parts[part] = parts[part].model_copy(update={field: value})
    whole = {name: value for name, value in changes.items() if name.partition("_")[0] not in parts}
    unique = {"id": f"{arm}-{boot}-{phase}", "created_utc": f"2026-11-29T12:{at:02}:30+00:00"}
    return seal(derived(made.model_copy(update={**unique, **parts, **whole})))


def tagged(plan_seal: str, slot: int, made: Receipt, attempt: int = 1) -> Receipt:
    """The receipt as a slot of a plan."""
    return seal(made.model_copy(update={"plan": Slot(plan=plan_seal, slot=slot, attempt=attempt)}))


def written(folder: Path, receipts: Sequence[Receipt]) -> Path:
    for each in receipts:
        write(each, folder / f"{each.id}.json")
    return folder


ABBA = "ABBABAAB"


def boots(order: str, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> tuple[list[Boot], list[Boot]]:
    """Boots of both arms in the order given by letters; a, b: the runs of each boot."""
    left = {"A": list(a), "B": list(b)}
    made = [Boot(f"{letter}{i}", letter, f"{i:03}", i, tuple(left[letter].pop(0))) for i, letter in enumerate(order)]
    return [x for x in made if x.arm == "A"], [x for x in made if x.arm == "B"]


def pair(order: str, a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], name: str = "prose") -> Pair:
    return Pair(name, "decode tok/s", *boots(order, a, b))


def flat(*values: float) -> list[list[float]]:
    """Boots whose five runs are all the same."""
    return [[value] * 5 for value in values]
