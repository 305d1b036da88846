"""May these receipts be compared at all? Every reason why not names the field. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.compare.load import key
from bench.receipt import Receipt

# What two arms may differ in when that is the very question; settings always may.
DIFFERS = ("weights", "engine", "tool")
# Readings that change from moment to moment and identify no machine.
_MOMENTARY = ("load_1min",)


def _hardware(receipt: Receipt) -> dict[str, Any] | None:
    found = receipt.system.hardware
    return None if found is None else {name: value for name, value in found.items() if name not in _MOMENTARY}


Field = tuple[str, Callable[[Receipt], Any], str | None]
# field name, how to read it, and the word of DIFFERS that allows a difference between arms
_COMMON: tuple[Field, ...] = (
    ("system.kit", lambda r: r.system.kit, None),
    ("system.hardware", _hardware, None),
    ("system.engine", lambda r: r.system.engine, "engine"),
    ("system.weights", lambda r: r.system.weights, "weights"),
    ("model", lambda r: r.model, "weights"),
    ("summary.token_sources", lambda r: r.summary.token_sources, None),
    ("tool.client", lambda r: r.tool.client, "tool"),
    ("tool.version", lambda r: r.tool.version, "tool"),
    ("tool.bench_sha256", lambda r: r.tool.bench_sha256, "tool"),
)


def unlike(a: Sequence[Receipt], b: Sequence[Receipt], differs: Sequence[str] = ()) -> list[str]:
    """Why the arms must not be compared: one line per field that differs; empty when they may."""
    found = [*_unlike_fields([*a, *b], differs), *_unlike_protocols([*a, *b])]
    for receipts in (a, b):
        found += _unlike_settings(receipts)
    return found + _unpaired(a, b)


def _unlike_fields(receipts: Sequence[Receipt], differs: Sequence[str]) -> list[str]:
    found = []
    for name, read, allowed in _COMMON:
        if allowed in differs:
            for arm in {receipt.arm for receipt in receipts}:
                found += _values(name, read, [r for r in receipts if r.arm == arm], f" inside arm {arm}")
        else:
            found += _values(name, read, receipts)
    return found


def _values(name: str, read: Callable[[Receipt], Any], receipts: Iterable[Receipt], where: str = "") -> list[str]:
    """A line when the receipts do not all hold the same value: the two most frequent ones, with a receipt for each."""
    seen: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        seen.setdefault(repr(read(receipt)), []).append(receipt)
    if len(seen) < 2:
        return []
    first, second = sorted(seen, key=lambda value: -len(seen[value]))[:2]
    return [f"field {name} differs{where}: {first[:160]} ({seen[first][0].id}) and {second[:160]} ({seen[second][0].id})"]


def _unlike_protocols(receipts: Sequence[Receipt]) -> list[str]:
    found: list[str] = []
    for name in dict.fromkeys(key(receipt) for receipt in receipts):
        same = [receipt for receipt in receipts if key(receipt) == name]
        for field in same[0].protocol.model_dump():
            if field != "runs":
                found += _values(f"protocol.{field}", lambda r, field=field: getattr(r.protocol, field), same, f" in {name}")  # type: ignore[misc]
        runs = Counter(receipt.system.boot for receipt in same for _ in receipt.runs)
        if len(set(runs.values())) > 1:
            found.append(f"field protocol.runs differs in {name}: boots have {min(runs.values())} to {max(runs.values())} runs")
    return found


def _unlike_settings(receipts: Sequence[Receipt]) -> list[str]:
    """Inside an arm every boot must have had the same settings."""
    names = {name for receipt in receipts for name in receipt.system.settings or {}}
    return [
        line
        for name in sorted(names)
        for line in _values(f"system.settings.{name}", lambda r, name=name: _setting(r, name), receipts, f" inside arm {receipts[0].arm}")  # type: ignore[misc]
    ]


def _setting(receipt: Receipt, name: str) -> Any:
    return (receipt.system.settings or {}).get(name)


def _unpaired(a: Sequence[Receipt], b: Sequence[Receipt]) -> list[str]:
    found = []
    shared = {receipt.system.boot for receipt in a} & {receipt.system.boot for receipt in b}
    if shared:
        found.append(f"field system.boot: boot {min(map(str, shared))} is in both arms")
    twice = [id for id, count in Counter(receipt.id for receipt in [*a, *b]).items() if count > 1]
    if twice:
        found.append(f"field id: receipt {twice[0]} is there twice")
    for name in sorted({key(receipt) for receipt in [*a, *b]}):
        for arm, receipts in (("baseline", a), ("candidate", b)):
            if not any(key(receipt) == name for receipt in receipts):
                found.append(f"field protocol.phase: the {arm} has no receipt of {name}")
    return found


def changed_settings(a: Receipt, b: Receipt) -> dict[str, tuple[Any, Any]]:
    """Setting -> (baseline, candidate) for every setting that differs between the arms."""
    names: Mapping[str, Any] = {**(a.system.settings or {}), **(b.system.settings or {})}
    pairs = {name: (_setting(a, name), _setting(b, name)) for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
