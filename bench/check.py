"""Is a receipt what it says? Schema, seal, and every derived figure recomputed from the raw facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.derive import derived
from bench.errors import InvalidMeasurement
from bench.receipt import Payload, Receipt, read, shown


def check(path: Path) -> Receipt:
    """The receipt at `path` if it is sound. Raises InvalidMeasurement naming the first field that is off."""
    receipt = read(path)
    payload = Payload.model_validate(receipt.model_dump(exclude={"seal"}))
    where = first_difference(payload.model_dump(mode="json"), derived(payload).model_dump(mode="json"))
    if where:
        field, stated, recomputed = where
        raise InvalidMeasurement(f"{shown(path)}: field {field}: says {stated!r}, the raw facts give {recomputed!r}")
    return receipt


def first_difference(stated: Any, recomputed: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """Path, stated and recomputed value of the first difference between two trees of plain data; None when equal."""
    if isinstance(stated, dict) and isinstance(recomputed, dict):
        keys = sorted({*stated, *recomputed})
        pairs = [(f"{field}.{key}".lstrip("."), stated.get(key), recomputed.get(key)) for key in keys]
    elif isinstance(stated, list) and isinstance(recomputed, list) and len(stated) == len(recomputed):
        pairs = [(f"{field}.{i}", a, b) for i, (a, b) in enumerate(zip(stated, recomputed, strict=True))]
    else:
        return None if stated == recomputed else (field, stated, recomputed)
    return next((found for name, a, b in pairs if (found := first_difference(a, b, name))), None)
