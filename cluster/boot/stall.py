"""When a start no longer gets anywhere. Pure: what the looks saw in, a verdict out.

A rank makes progress when its log says something new (beside the lines that a waiting rank repeats), when its processes use the CPU,
or when its GPU works. A stall is: no rank made any for its phase's limit; or a stopped process for as long; or no log line at all
for much longer, while the processes are busy: a collective that spins without end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.boot.look import Look
from cluster.boot.phases import ORDER, Phases
from cluster.boot.signatures import NOISE

_WINDOW_S = 5.0  # over which the use of the CPU is measured: a clock tick is 10 ms
_BUSY_CORES = 0.05  # less is what waiting threads use
_GPU_WORKS_PERCENT, _GPU_WORKS_WATTS = 10.0, 25.0  # a GB10 that spins in a collective shows 96 % at about 20 W (field reports A22)


@dataclass(frozen=True)
class Limit:
    """Longest time without progress, seconds: with idle processes; with an empty compile cache; with busy ones (None: no limit)."""

    idle_s: float
    cold_s: float
    busy_s: float | None
    why: str


LIMITS: Mapping[str, Limit] = {
    "container": Limit(120, 120, None, "docker has answered already; reading an image's first pages from a slow disk takes a minute"),
    "process": Limit(180, 180, None, "imports read some GB of libraries; nothing is printed meanwhile"),
    "join": Limit(300, 300, 900, "another node may read its image for minutes; NCCL itself gives up after 600 s"),
    "load": Limit(300, 300, None, "a shard takes seconds, over a slow network file system a minute or more"),
    "profile": Limit(600, 2700, None, "the first forward compiles kernels: up to 36 min were reported with an empty cache (G3)"),
    "kv": Limit(300, 2700, 1800, "an allocation; one reported hang spins here for ever (launcher study, 6.15)"),
    "warmup": Limit(600, 2700, None, "graph capture compiles too; seconds with a warm cache, minutes without"),
    "api": Limit(180, 180, None, "routes and templates: seconds"),
    "canary": Limit(600, 2700, None, "the first requests compile what no warm-up did (G4)"),
    "ready": Limit(600, 600, None, "nothing left to do"),
}
assert list(LIMITS) == list(ORDER)


@dataclass(frozen=True)
class Pulse:
    """When a rank last made progress, last printed, and since when a process of it is stopped; its CPU time at `window_at`."""

    progress_at: float
    printed_at: float
    window_at: float
    window_cpu_s: float
    cores: float = 0.0
    frozen_since: float | None = None
    cold: bool = False


def first(look: Look) -> Pulse:
    """The pulse at the first look, which counts as progress."""
    return Pulse(look.at_unix_s, look.at_unix_s, look.at_unix_s, look.cpu_s, cold=bool(look.deep and look.deep.cold_cache))


def beat(pulse: Pulse, look: Look) -> Pulse:
    """The pulse after one more look."""
    now = look.at_unix_s
    printed = any(not NOISE.search(line.text) for line in look.lines)
    cores, window = pulse.cores, (pulse.window_at, pulse.window_cpu_s)
    if now - pulse.window_at >= _WINDOW_S:
        # The sum falls when a process ends before anybody waited for it: that is a change, too.
        cores, window = abs(look.cpu_s - pulse.window_cpu_s) / (now - pulse.window_at), (now, look.cpu_s)
    progress = printed or gpu_works(look) or (cores >= _BUSY_CORES and window[0] == now)
    return dataclasses.replace(
        pulse,
        progress_at=now if progress else pulse.progress_at,
        printed_at=now if printed else pulse.printed_at,
        window_at=window[0],
        window_cpu_s=window[1],
        cores=cores,
        frozen_since=(pulse.frozen_since or now) if look.frozen else None,
    )


def gpu_works(look: Look) -> bool:
    """Whether a GPU computes, as far as this look knows: used, and drawing more than one that only spins."""
    gpus = look.deep.gpus if look.deep and look.deep.gpus else ()
    return any((use or 0) >= _GPU_WORKS_PERCENT and (watts is None or watts >= _GPU_WORKS_WATTS) for use, watts in gpus)


@dataclass(frozen=True)
class Stall:
    """No rank gets anywhere. `why`: idle, stopped or spinning; `waited_s` without progress, of `limit_s` allowed in `phase`."""

    why: str
    role: str
    phase: str
    waited_s: float
    limit_s: float


def judge(phases: Mapping[str, Phases], pulses: Mapping[str, Pulse], now: Mapping[str, float], override_s: float | None) -> Stall | None:
    """Whether the start has stalled; everything by role, `now` on each node's own clock. `override_s` replaces the idle limits."""
    idle: dict[str, Stall] = {}
    spinning: dict[str, Stall] = {}
    for role, pulse in pulses.items():
        limit = LIMITS[phases[role].phase]
        allowed = override_s or (limit.cold_s if pulse.cold else limit.idle_s)
        waited = now[role] - pulse.progress_at
        if pulse.frozen_since is not None and min(waited, now[role] - pulse.frozen_since) >= allowed:
            return Stall("stopped", role, phases[role].phase, waited, allowed)
        if waited >= allowed:
            idle[role] = Stall("idle", role, phases[role].phase, waited, allowed)
        silent = now[role] - pulse.printed_at
        if limit.busy_s is not None and silent >= limit.busy_s:
            spinning[role] = Stall("spinning", role, phases[role].phase, silent, limit.busy_s)
    for found in (idle, spinning):
        if pulses and len(found) == len(pulses):
            # The rank that is least far is the one that the others wait for.
            return min(found.values(), key=lambda stall: list(ORDER).index(stall.phase))
    return None
