"""Unified memory as the kernel counts it: /proc/meminfo, /proc/swaps, /proc/vmstat. Bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.facts.raw import Raw


@dataclass(frozen=True)
class Memory:
    """page_cache: may be given back, yet counts as used for CUDA. oom_kills: processes killed since the boot."""

    total_bytes: int | None
    available_bytes: int | None
    free_bytes: int | None
    page_cache_bytes: int | None
    swap_total_bytes: int | None
    swap_used_bytes: int | None
    oom_kills: int | None
    major_faults: int | None


def parse(raw: Raw) -> Memory:
    """Missing lines give None."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB", raw.text("/proc/meminfo") or "", re.MULTILINE)
    of = {name: int(count) * 1024 for name, count in rows}
    counters = dict(re.findall(r"^(\w+) (\d+)$", raw.text("/proc/vmstat") or "", re.MULTILINE))
    kills, faults = counters.get("oom_kill"), counters.get("pgmajfault")
    total, free = of.get("SwapTotal"), of.get("SwapFree")
    return Memory(
        of.get("MemTotal"), of.get("MemAvailable"), of.get("MemFree"), of.get("Cached"), total,
        None if total is None or free is None else total - free,
        None if kills is None else int(kills), None if faults is None else int(faults),
    )  # fmt: skip
