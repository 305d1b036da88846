"""A server's own counters from `/metrics`, in two dialects: `vllm:` and `llamacpp:`. Sums over engines; None: not offered."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Literal

from bench.trace import Fact

_LINE = re.compile(r'([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+(\S+)(?:\s+-?\d+)?\s*')
_MOST_POSITIONS = 1024  # no drafter looks further ahead; a damaged label must not make us reserve memory for it
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')

# our name -> metric names that add up to it, per dialect. llama.cpp counts only the prompt tokens it computed.
_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "generation_tokens": ("generation_tokens_total",),
        "prompt_tokens": ("prompt_tokens_total",),
        "cached_tokens": ("prefix_cache_hits_total",),
        "running": ("num_requests_running",),
        "waiting": ("num_requests_waiting",),
        "preemptions": ("num_preemptions_total",),
    },
    "llamacpp": {
        "generation_tokens": ("tokens_predicted_total",),
        "prompt_tokens": ("prompt_tokens_total", "prompt_tokens_cached_total"),
        "cached_tokens": ("prompt_tokens_cached_total",),
        "running": ("requests_processing",),
        "waiting": ("requests_deferred",),
    },
}
_SPECULATION = {
    "drafts": "spec_decode_num_drafts_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


class Counters(Fact):
    """One reading. running and waiting are gauges (requests now), the rest are totals since the server started."""

    dialect: Literal["vllm", "llamacpp"]
    generation_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] = ()


def _samples(text: str) -> list[tuple[str, str, float]]:
    """(metric name, labels, value) of every well-formed line with a finite value; anything else is passed over."""
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and not line.startswith("#"):
            try:
                value = float(match[3])
            except ValueError:
                continue
            if math.isfinite(value):
                found.append((match[1], match[2] or "", value))
    return found


def parse(text: str) -> Counters | None:
    """The counters in a Prometheus text exposition, or None when it speaks neither dialect."""
    sums: dict[str, float] = defaultdict(float)
    positions: dict[int, float] = defaultdict(float)
    for name, labels, value in _samples(text):
        sums[name] += value
        at = _POSITION.search(labels)
        if at and name.endswith(_PER_POSITION) and int(at[1]) < _MOST_POSITIONS:
            positions[int(at[1])] += value
    for dialect in ("vllm", "llamacpp"):
        if any(name.startswith(f"{dialect}:") for name in sums):
            return _read(dialect, sums, positions)
    return None


def _read(dialect: str, sums: dict[str, float], positions: dict[int, float]) -> Counters:
    def total(*names: str) -> int | None:
        keys = [f"{dialect}:{name}" for name in names]
        return int(sum(sums[key] for key in keys)) if all(key in sums for key in keys) else None

    per_position = tuple(int(positions.get(i, 0)) for i in range(max(positions, default=-1) + 1))
    plain = {ours: total(*theirs) for ours, theirs in _NAMES[dialect].items()}
    speculation = {ours: total(theirs) for ours, theirs in _SPECULATION.items()}
    return Counters.model_validate({"dialect": dialect, **plain, **speculation, "accepted_per_position": per_position})


class Delta(Fact):
    """How far each total moved between two readings; None where either lacks it or it went backwards (server restarted)."""

    generation_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: tuple[int, ...] | None = None


def delta(before: Counters | None, after: Counters | None) -> Delta:
    """after - before, total by total. Positions that appeared in between count from zero."""
    if before is None or after is None:
        return Delta()
    plain = {name: _moved(getattr(before, name), getattr(after, name)) for name in Delta.model_fields if name != "accepted_per_position"}
    old = before.accepted_per_position + (0,) * (len(after.accepted_per_position) - len(before.accepted_per_position))
    steps = tuple(b - a for a, b in zip(old, after.accepted_per_position, strict=False))
    backwards = len(old) > len(after.accepted_per_position) or any(step < 0 for step in steps)
    return Delta.model_validate({**plain, "accepted_per_position": None if backwards else steps})


def _moved(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None or after < before else after - before
