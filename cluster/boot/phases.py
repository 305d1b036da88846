"""Which phase of its start a rank is in, read from its own log. Pure.

The marks are lines of vLLM 0.32 (its sources and real logs) and of llama.cpp's server; lines that say nothing are passed over, and
no phase is left backwards: a drafter that is loaded after the memory profile began changes nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.boot.look import Line

# name -> what to call it where a person reads it, in order
ORDER: Mapping[str, str] = {
    "container": "container",
    "process": "process and imports",
    "join": "ranks meet",
    "load": "weights",
    "profile": "memory profile",
    "kv": "KV cache",
    "warmup": "graphs and warm-up",
    "api": "API",
    "canary": "canary",
    "ready": "ready",
}
_NUMBER = {name: number for number, name in enumerate(ORDER)}

# engine -> (pattern, the phase that begins with such a line). Groups, where there are two, are done and total.
MARKS: Mapping[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    "vllm": tuple(
        (re.compile(pattern), phase)
        for pattern, phase in (
            (r"world_size=\d+ rank=\d+ local_rank=\d+ distributed_init_method=", "join"),
            (r"Starting to load model ", "load"),
            (r"^Loading (?:safetensors|pt|fastsafetensors)\b.*?% Completed \| (\d+)/(\d+) \[", "load"),
            (r"Model loading took [\d.]+ GiB", "profile"),
            (r"Dynamo bytecode transform time|Compiling a graph for compile range|Encoder cache will be initialized", "profile"),
            (r"Available KV cache memory: |GiB for KV cache on node ", "kv"),
            (r"KV cache size: [\d,]+ tokens", "warmup"),
            (r"Capturing CUDA graphs.*?[| ](\d+)/(\d+) \[", "warmup"),
            (r"Capturing CUDA graphs|Compile and warming up model for size|Warming up model for the compilation", "warmup"),
            (r"init engine \(profile, create kv cache, warmup model\) took", "api"),
        )
    ),
    "llama": (
        (re.compile(r"load_model: loading model '"), "load"),
        (re.compile(r"llama threadpool init|load_model: initializing, n_slots"), "warmup"),
        (re.compile(r"init: model loaded"), "api"),
    ),
}


@dataclass(frozen=True)
class Phases:
    """Where rank `rank` is: its phase since `since` (unix time of its node), done of total shards or graphs where its log tells.

    `began`: phase -> when it began, for every phase that was seen; a phase that left no mark has no entry.
    """

    rank: int
    phase: str
    since: float
    done: int | None = None
    total: int | None = None
    began: Mapping[str, float] = field(default_factory=dict)

    def enter(self, phase: str, at_unix_s: float) -> Phases:
        """In `phase` since that time, if it comes after the one it is in."""
        if _NUMBER[phase] <= _NUMBER[self.phase]:
            return self
        return Phases(self.rank, phase, at_unix_s, began={**self.began, phase: at_unix_s})

    def durations_s(self) -> dict[str, float]:
        """Seconds in every phase that has ended, in order."""
        begun = sorted(self.began.items(), key=lambda pair: _NUMBER[pair[0]])
        return {name: round(max(0.0, end - at), 3) for (name, at), (_, end) in itertools.pairwise(begun)}

    def eta_s(self, now_unix_s: float) -> float | None:
        """Seconds until the end of this phase at the pace so far; None while nothing is known of it."""
        if not self.done or not self.total or self.done > self.total:
            return None
        return (now_unix_s - self.since) / self.done * (self.total - self.done)


def begin(rank: int, at_unix_s: float, phase: str = "container") -> Phases:
    """A rank that was just started."""
    return Phases(rank, phase, at_unix_s, began={phase: at_unix_s})


def advance(phases: Phases, lines: Iterable[Line], engine: str) -> Phases:
    """`phases` after these lines of the rank's log."""
    for line in lines:
        phases = phases.enter("process", line.at_unix_s)
        found = next(((mark.search(line.text), phase) for mark, phase in MARKS[engine] if mark.search(line.text)), None)
        if found is None or found[0] is None:
            continue
        phases = phases.enter(found[1], line.at_unix_s)
        if found[0].re.groups == 2 and found[1] == phases.phase:
            phases = dataclasses.replace(phases, done=int(found[0][1]), total=int(found[0][2]))
    return phases


def told(durations_s: Mapping[str, float]) -> str:
    """`container 0.4, process and imports 12.0, ...`, seconds each; what took no time is left out."""
    return ", ".join(f"{ORDER[name]} {seconds:.1f}" for name, seconds in durations_s.items() if seconds >= 0.05)
