"""A server's counters from `/metrics`, as far as the launcher needs them: vLLM's names, before and after renamings, and llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r'(?:vllm|llamacpp):(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s+([\d.eE+-]+)(?:\s+\d+)?\s*')
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')
# ours -> their names, the first that is offered counts
_NAMES: Mapping[str, tuple[str, ...]] = {
    "generation": ("generation_tokens_total", "tokens_predicted_total"),
    "prompt": ("prompt_tokens_total",),
    "steps": ("iteration_tokens_total_count", "n_decode_total"),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "running": ("num_requests_running", "requests_processing"),
    "waiting": ("num_requests_waiting", "requests_deferred"),
    "drafts": ("spec_decode_num_drafts_total",),
    "draft_tokens": ("spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total",),
}
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Reading:
    """One reading, summed over engines; None: not offered. running, waiting and kv_usage are as of now, the rest since the start."""

    generation: float | None = None
    prompt: float | None = None
    steps: float | None = None
    kv_usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_at: tuple[float, ...] = ()


def parse(text: str) -> Reading | None:
    """The counters in a Prometheus text; None when it holds none that we know."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if not match:
            continue
        sums[match[1]] = sums.get(match[1], 0.0) + float(match[3])
        at = _POSITION.search(match[2] or "")
        if at and match[1] == _PER_POSITION:
            positions[int(at[1])] = positions.get(int(at[1]), 0.0) + float(match[3])
    found = {ours: next((sums[name] for name in theirs if name in sums), None) for ours, theirs in _NAMES.items()}
    if all(value is None for value in found.values()):
        return None
    return Reading(**found, accepted_at=tuple(positions.get(i, 0.0) for i in range(max(positions, default=-1) + 1)))


def moved(before: Reading | None, after: Reading | None) -> bool:
    """Whether the engine worked between two readings. How many requests run or wait is no work.

    The use of the KV cache counts: during a long prefill it is the only figure that changes.
    """
    if before is None or after is None:
        return False
    return any(
        old is not None and new is not None and old != new
        for old, new in (
            (before.generation, after.generation),
            (before.prompt, after.prompt),
            (before.steps, after.steps),
            (before.kv_usage, after.kv_usage),
        )
    )
