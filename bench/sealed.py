"""Sealed documents beside receipts: plans, comparisons, calibrations. One line per top-level key, so that a diff shows which changed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.errors import BadRequest, BenchError
from bench.receipt import canonical, shown

_HINT = "try: free disk space, or another place"


def document(plain: dict[str, Any]) -> str:
    """The text of a sealed document given as plain data."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {canonical(plain[key])}" for key in sorted(plain)) + "\n}\n"


def write(plain: dict[str, Any], path: Path) -> None:
    """Write atomically: a full disk leaves what was there. Raises BenchError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(document(plain), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise BenchError(f"cannot write {shown(path)}: {error.strerror}\n{_HINT}") from error


def refuse_unwritable(path: Path) -> None:
    """Find out now, not after the work, that no file can be put at `path`. Raises BadRequest."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise BadRequest(f"cannot write {shown(path)}: {error.strerror}\n{_HINT}") from error
    if path.is_dir():
        raise BadRequest(f"cannot write {shown(path)}: it is a folder\n{_HINT}")
