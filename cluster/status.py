"""The state of a kit in three levels: process of every rank, API, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import health
from cluster.boot import look as looks
from cluster.boot.look import Look
from cluster.errors import LaunchError
from cluster.metrics import Reading
from cluster.ranks import Rank
from cluster.session import Cluster


@dataclass(frozen=True)
class RankStatus:
    """One rank as its node sees it: running, frozen (a process of it was stopped by a signal), crashed, stopped or unreachable.

    `detail`: the same in words; `boot_id`: of the node's kernel, another one after a reboot; None: not known.
    """

    rank: int
    role: str
    state: str
    detail: str
    record: Mapping[str, Any] | None
    boot_id: str | None = None


@dataclass(frozen=True)
class Status:
    """The whole kit. `api`: /health is 200 on the head. `engine`: it makes progress, and how that is known; None: not asked."""

    kit: str
    state: str
    process: bool
    api: bool
    engine: bool | None
    detail: str
    ranks: tuple[RankStatus, ...]
    record: Mapping[str, Any] | None
    engine_detail: str = ""
    counters: Reading | None = None

    @property
    def ready(self) -> bool:
        return self.process and self.api and self.engine is not False


def look(cluster: Cluster, *, passive: bool = False, deadline_s: float = 20, before: Reading | None = None) -> Status:
    """Ask every node, then the API, then the engine (see health.engine); `passive` sends no one-token request."""
    results = cluster.nodes.run(looks.look_step(rank) for rank in cluster.ranks)
    seen = {role: looks.read(role, answer) for role, answer in results.answers.items()}
    each = tuple(_rank(cluster, rank, seen.get(rank.role), results.failures.get(rank.role)) for rank in cluster.ranks)
    head = seen[cluster.head].probe if cluster.head in seen else None
    process = all(rank.state == "running" for rank in each)
    api = bool(head and head.running and head.health == 200)
    record = head.record if head else None
    locked_out = bool(record and record["settings"].get("vllm_api_key") != cluster.effective.fingerprint()["vllm_api_key"])
    ask = api and record and not locked_out and all(rank.state != "frozen" for rank in each)
    engine = health.engine(cluster.server(record), deadline_s, before) if ask and record and not passive else None
    counters = engine.counters if engine else health.counters(cluster.server(record), 2) if api and record else None
    details = [rank.detail for rank in each if rank.detail] + ([engine.how] if engine and not engine.works else [])
    detail = "the server wants another VLLM_API_KEY than this command has" if locked_out else "; ".join(details)
    works, how = (engine.works, engine.how) if engine else (None, "")
    return Status(cluster.kit, _word(each, process, api, works, record), process, api, works, detail, each, record, how, counters)


def _rank(cluster: Cluster, rank: Rank, seen: Look | None, failure: LaunchError | None) -> RankStatus:
    probe = seen.probe if seen else None
    state, detail, record = "stopped", "", probe.record if probe else None
    if seen is None or probe is None or probe.problem:
        state, detail = "unreachable", str(failure or (probe and probe.problem)).splitlines()[0]
    elif probe.running and seen.frozen:
        state, detail = "frozen", f"stopped by a signal (SIGSTOP): {', '.join(seen.frozen)}; kill -CONT continues it"
    elif probe.running:
        state = "running"
    elif probe.crashed:
        state, detail = "crashed", probe.ending()
    elif probe.holder:
        detail = f"port {rank.settings.port} is held by pid {probe.holder['pid']}, not ours"
    where = cluster.at(rank.role) + detail if detail else ""
    return RankStatus(rank.number, rank.role, state, where, record, seen.boot_id if seen else None)


def _word(each: tuple[RankStatus, ...], process: bool, api: bool, engine: bool | None, record: Mapping[str, Any] | None) -> str:
    states = {rank.state for rank in each}
    if process:
        was_ready = bool(record and record.get("boot_phases_s"))
        return ("api does not answer" if was_ready else "starting") if not api else "engine does not answer" if engine is False else "ready"
    if len(states) == 1:
        return states.pop()
    return "incomplete: " + ", ".join(f"{rank.role} {rank.state}" for rank in each)
