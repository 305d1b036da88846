"""Old receipts under the present schema and rules: the raw facts stay, every derived figure is computed anew, the seal is new.

A migrated receipt names the seal of its original and every derived field whose value changed, so that both stay comparable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.check import first_difference
from bench.derive import derived
from bench.errors import InvalidMeasurement
from bench.receipt import Migrated, Payload, Receipt, read, seal, shown

# What derive.derived computes; all else of a receipt is a raw fact.
_DERIVED = ("valid", "invalid_because", "failed_gates", "notes", "summary", "migrated", "seal")
_DERIVED_RUN = ("metrics", "isolation", "health", "cache")
_DERIVED_ROUND = ("isolation", "group", "interference", "goodput")


def migrated(path: Path) -> Receipt | None:
    """The receipt at `path` under the present rules; None when it already follows them.

    Raises InvalidMeasurement when it is no receipt, when its seal does not fit, or when a raw fact would change.
    """
    old = read(path)
    payload = Payload.model_validate(old.model_dump(exclude={"seal"}))
    new = derived(payload)
    changed = _changed(payload.model_dump(mode="json"), new.model_dump(mode="json"))
    if not changed:
        return None
    sealed = seal(new.model_copy(update={"migrated": Migrated(from_seal=old.seal, changed=changed)}))
    lost = first_difference(_raw(old), _raw(sealed))
    if lost:
        raise InvalidMeasurement(f"{shown(path)}: field {lost[0]}: a raw fact would change from {lost[1]!r} to {lost[2]!r}")
    return sealed


def _changed(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
    """Every derived top-level field, field of the summary, and part of a run or round that has another value now."""
    found = [name for name in _DERIVED[:4] if old[name] != new[name]]
    found += [f"summary.{name}" for name in new["summary"] if old["summary"].get(name) != new["summary"][name]]
    for part, names in (("runs", _DERIVED_RUN), ("rounds", _DERIVED_ROUND)):
        for at, (before, after) in enumerate(zip(old[part], new[part], strict=True)):
            found += [f"{part}.{at}.{name}" for name in names if before.get(name) != after.get(name)]
    return (*found, *(["coherence"] if old["coherence"] != new["coherence"] else []))


def _raw(receipt: Receipt) -> dict[str, Any]:
    plain = receipt.model_dump(mode="json", exclude={*_DERIVED})
    for part, names in (("runs", _DERIVED_RUN), ("rounds", _DERIVED_ROUND)):
        plain[part] = [{key: value for key, value in each.items() if key not in names} for each in plain[part]]
    plain["coherence"] = [{"id": probe["id"], "text": probe["text"]} for probe in plain["coherence"] or ()]
    return plain
