"""The budget against what the nodes have now. Pure: readings in, problems out, for doctor and up."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.budget import figures as f
from cluster.budget.fit import budget
from cluster.constraint_model import GIB
from cluster.settings import Effective


@dataclass(frozen=True)
class Problem:
    """One thing in the way. level error: the engine will refuse to start. node: the role. hint: what to try."""

    level: Literal["error", "warning"]
    node: str
    what: str
    hint: str


def problems(effective: Effective, meminfo: Mapping[str, Mapping[str, int]]) -> list[Problem]:
    """What stands in the way on each node; `meminfo`: role -> reading in bytes, before a launch.

    Readings as /proc/meminfo names them (MemAvailable, MemFree), and CudaFree where a process asked CUDA. Absent ones are not judged.
    """
    gib = {role: {name: value / GIB for name, value in seen.items()} for role, seen in meminfo.items()}
    if effective.kit.engine == "llama":
        return [problem for role, seen in gib.items() for problem in _of_machine(role, budget(effective).needed, seen)]
    if effective.kit.hardware != "gb10":
        return []
    need = effective.settings.gpu_mem_util * f.TOTAL.gib
    return [problem for role, seen in gib.items() for problem in _of_node(role, need, seen)]


def _of_machine(role: str, need: float, gib: Mapping[str, float]) -> list[Problem]:
    free = gib.get("MemAvailable")
    if free is None or free >= need:
        return []
    what = f"the server needs {need:.2f} GiB, {free:.2f} GiB are available"
    return [Problem("error", role, what, "a smaller MAX_MODEL_LEN or MAX_NUM_SEQS, or stop what else uses memory: free -g")]


def meminfo_bytes(text: str) -> dict[str, int]:
    """The lines of /proc/meminfo that are sizes, in bytes."""
    return {name: int(count) * 1024 for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _of_node(role: str, need: float, gib: Mapping[str, float]) -> list[Problem]:
    free = min((gib[name] for name in ("CudaFree", "MemAvailable") if name in gib), default=None)
    headroom = 0.0 if free is None or free == gib.get("CudaFree") else f.START_HEADROOM.gib
    if free is None:
        return []
    if free < need + headroom:
        return [_short(role, need + headroom, free, headroom)]
    if "MemFree" in gib and gib["MemFree"] < need:
        cached = gib["MemAvailable"] - gib["MemFree"] if "MemAvailable" in gib else need - gib["MemFree"]
        what = f"{gib['MemFree']:.1f} GiB are free and {cached:.1f} GiB hold reclaimable cache, which the start check counts as used"
        return [Problem("warning", role, what, "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches")]
    return []


def _short(role: str, need: float, free: float, headroom: float) -> Problem:
    largest = math.floor((free - headroom) / f.TOTAL.gib * 100) / 100
    what = f"the launch needs {need:.1f} GiB, {free:.1f} GiB are available"
    return Problem("error", role, what, f"stop what else uses memory there (nvidia-smi, free -g), or GPU_MEM_UTIL={largest:g}")
