"""Sealed documents beside receipts: plans, comparisons, calibrations. One line per top-level key, so that a diff shows which changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.receipt import canonical


def document(plain: dict[str, Any]) -> str:
    """The text of a sealed document given as plain data."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {canonical(plain[key])}" for key in sorted(plain)) + "\n}\n"


def write(plain: dict[str, Any], path: Path) -> None:
    """Write atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(document(plain), encoding="utf-8")
    os.replace(temporary, path)
