"""The state of a kit in three levels: process of every rank, API, engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import health
from cluster.probe import Probe
from cluster.ranks import Rank
from cluster.session import Cluster


@dataclass(frozen=True)
class RankStatus:
    """One rank as its node sees it: running, crashed, stopped or unreachable, with a detail in words."""

    rank: int
    role: str
    state: str
    detail: str
    record: Mapping[str, Any] | None


@dataclass(frozen=True)
class Status:
    """The whole kit. `api`: /health is 200 on the head. `engine`: one token could be generated; None: not asked."""

    kit: str
    state: str
    process: bool
    api: bool
    engine: bool | None
    detail: str
    ranks: tuple[RankStatus, ...]
    record: Mapping[str, Any] | None

    @property
    def ready(self) -> bool:
        return self.process and self.api and self.engine is not False


def look(cluster: Cluster, *, passive: bool = False) -> Status:
    """Ask every node, then the API; `passive` leaves out the one-token request of the third level."""
    probes, failures = cluster.probes(lines=0)
    each = tuple(_rank(cluster, rank, probes.get(rank.role), failures.get(rank.role)) for rank in cluster.ranks)
    head = probes.get(cluster.head)
    process = all(rank.state == "running" for rank in each)
    api = bool(head and head.running and head.health == 200)
    record = head.record if head else None
    locked_out = bool(record and record["settings"].get("vllm_api_key") != cluster.effective.fingerprint()["vllm_api_key"])
    engine = health.engine_answers(cluster.server(record)) if api and record and not passive and not locked_out else None
    detail = "the server wants another VLLM_API_KEY than this command has" if locked_out else "; ".join(r.detail for r in each if r.detail)
    return Status(cluster.kit, _word(each, process, api, engine), process, api, engine, detail, each, record)


def _rank(cluster: Cluster, rank: Rank, probe: Probe | None, failure: BaseException | None) -> RankStatus:
    state, detail, record = "stopped", "", probe.record if probe else None
    if probe is None or probe.problem:
        state, detail = "unreachable", str(failure or (probe and probe.problem)).splitlines()[0]
    elif probe.running:
        state = "running"
    elif probe.crashed:
        state, detail = "crashed", probe.ending()
    elif probe.holder:
        detail = f"port {rank.settings.port} is held by pid {probe.holder['pid']}, not ours"
    return RankStatus(rank.number, rank.role, state, cluster.at(rank.role) + detail if detail else "", record)


def _word(each: tuple[RankStatus, ...], process: bool, api: bool, engine: bool | None) -> str:
    states = {rank.state for rank in each}
    if process:
        return "starting or hanging" if not api else "engine does not answer" if engine is False else "ready"
    if len(states) == 1:
        return states.pop()
    return "incomplete: " + ", ".join(f"{rank.role} {rank.state}" for rank in each)
