"""One look at a rank: what its probe says, its new log lines, and what its processes do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import probe as probes
from cluster.plan import Step, request
from cluster.probe import Probe
from cluster.ranks import Rank, launch


@dataclass(frozen=True)
class Line:
    """A log line. `at_unix_s`: by docker's time stamp, else when the node was asked; the node's own clock."""

    at_unix_s: float
    text: str


@dataclass(frozen=True)
class Deep:
    """What is asked only now and then. gpus: (utilisation in %, watts) each. peers: address -> TCP state -> connections."""

    gpus: tuple[tuple[float | None, float | None], ...] | None
    peers: Mapping[str, Mapping[str, int]]
    memory_available_bytes: int
    memory_total_bytes: int
    oom_kills: int
    cold_cache: bool


@dataclass(frozen=True)
class Look:
    """What one node answered. `cursor` goes into the next look. `states`: (pid, name, state letter of /proc/PID/stat) each."""

    probe: Probe
    at_unix_s: float
    boot_id: str
    lines: tuple[Line, ...]
    cursor: str | None
    states: tuple[tuple[int, str, str], ...]
    cpu_s: float
    deep: Deep | None

    @property
    def frozen(self) -> tuple[str, ...]:
        """Processes stopped by a signal (SIGSTOP), which go on only when somebody continues them. A debugger's stop is another state."""
        return tuple(f"{name} (pid {pid})" for pid, name, state in self.states if state == "T")


def look_step(rank: Rank, cursor: str | None = None, *, deep: bool = False) -> Step:
    """The request for one look. `cursor`: "" for the log from its begin, that of the look before for what is new, None for no log."""
    peers = [s.ip for role in rank.kit.nodes if role != rank.role and (s := rank.settings.node(role)).ip]
    port = rank.settings.port if rank.number == 0 else None
    more = {"probe": request(rank, "probe")["action"], "port": port, "cursor": cursor, "deep": deep}
    asked = request(rank, "watch_look", **more, peers=peers, folders=list(launch(rank).folders))
    return Step(rank.role, "look at the rank", asked, 30)


def read(role: str, answer: Mapping[str, Any]) -> Look:
    """The node agent's answer to a look."""
    seen = answer["watch"]
    lines = tuple(Line(seen["at_unix_s"] if at is None else at, text) for at, text in seen["lines"])
    states = tuple((pid, name, state) for pid, name, state in seen["processes"])
    found = probes.read(role, answer["probe"])
    return Look(found, seen["at_unix_s"], seen["boot_id"], lines, seen["cursor"], states, seen["cpu_s"], _deep(seen))


def _deep(seen: Mapping[str, Any]) -> Deep | None:
    if "peers" not in seen:
        return None
    gpus = None if seen["gpu"] is None else tuple((use, watts) for use, watts in seen["gpu"])
    names = ("peers", "memory_available_bytes", "memory_total_bytes", "oom_kills", "cold_cache")
    return Deep(gpus, *(seen[name] for name in names))
