"""What a receipt says of the system it measured, read from the run record and this machine. No names, no addresses."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.settings import noted


def system(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of bench.receipt.System for the server that `record` describes."""
    settings = {name: placeless(value) for name, value in record["settings"].items() if not noted(name, "place")}
    return {
        "kit": record["kit"],
        "engine": record["engine"],
        "argv": [placeless(word) for word in record.get("argv") or ()],
        "weights": {name: placeless(value) for name, value in record["weights"].items()},
        "settings": settings,
        "boot": record["boot"],
        "boot_age_s": round(time.time() - record["started_unix_s"], 1),
        "hardware": hardware() if record["kit"] == "local" else None,
    }


def placeless(value: Any) -> Any:
    """The value without what says where things are on somebody's machines: the folders of paths, and addresses."""
    if not isinstance(value, str):
        return value
    return re.sub(r"(?<![^\s=:,])~?/(?:[^\s/=:,]+/)+", "", re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "-", value))


def hardware() -> dict[str, str | int | float | None]:
    """This machine: processor, cores it may use, memory, operating system, kernel, load."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "kernel": platform.release(),
        "load_1min": round(os.getloadavg()[0], 2),
        "gpu": None,
        "driver": None,
    }


def _cpu_model() -> str | None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return named[0] if named else None
