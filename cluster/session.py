"""A kit with a way to each of its nodes: opened, probed, locked."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster import health, state
from cluster.connect import connect
from cluster.errors import LaunchError
from cluster.execute import Nodes, combined
from cluster.plan import Step, lock_step, probe_step
from cluster.probe import Probe, read, silent_docker
from cluster.ranks import Rank, ranks
from cluster.settings import Effective


@dataclass(frozen=True)
class Cluster:
    """A kit as this call's settings describe it, with a way to each of its nodes."""

    effective: Effective
    nodes: Nodes

    @property
    def kit(self) -> str:
        return self.effective.kit.name

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return ranks(self.effective)

    @property
    def head(self) -> str:
        """The role of rank 0."""
        return self.effective.kit.nodes[0]

    def at(self, role: str) -> str:
        """How a message says where: nothing for a kit with one node."""
        return "" if len(self.effective.kit.nodes) == 1 else f"{role}: "

    def probes(self, lines: int = 12) -> tuple[dict[str, Probe], Mapping[str, LaunchError]]:
        """A probe of every node that answers, by role, and the failure of every node that does not."""
        results = self.nodes.run(probe_step(rank, lines) for rank in self.ranks)
        return {role: read(role, answer) for role, answer in results.answers.items()}, results.failures

    def certain_probes(self) -> dict[str, Probe]:
        """A probe of every node. Raises LaunchError when one does not answer or its docker does not."""
        probes, failures = self.probes(lines=0)
        broken = silent_docker(probes)
        if failures or broken:
            raise combined("looking at the nodes", [*failures.values(), *broken.values()])
        return probes

    def head_record(self) -> Mapping[str, Any] | None:
        """The record of a running rank 0, or None."""
        probes, failures = self.probes(lines=0)
        if self.head in failures:
            raise failures[self.head]
        return probes[self.head].record if probes[self.head].running else None

    def server(self, record: Mapping[str, Any]) -> health.Server:
        return health.Server(record["base_url"], record["model"], self.effective.settings.vllm_api_key)


@contextlib.contextmanager
def opened(effective: Effective) -> Iterator[Cluster]:
    """The cluster, with its connections closed in the end."""
    python = sys.executable if effective.kit.topology == "single" else "python3"
    nodes = Nodes({rank.role: connect(rank.role, rank.node, effective) for rank in ranks(effective)}, python)
    try:
        yield Cluster(effective, nodes)
    finally:
        nodes.close()


def owner() -> str:
    return f"{getpass.getuser()} (pid {os.getpid()}: invoke {' '.join(sys.argv[1:])[:60]})"


@contextlib.contextmanager
def locked(cluster: Cluster) -> Iterator[str]:
    """The launch lock of every node, or of this machine for a single-node kit. Yields the lock's token.

    A node's lock is a lease: it ends LOCK_TTL_S after the last refresh, so a command that was killed blocks nobody for long.
    """
    if cluster.effective.kit.topology == "single":
        with state.lock(cluster.kit):
            yield ""
        return
    token = secrets.token_hex(8)
    steps = [lock_step(rank, token, owner()) for rank in cluster.ranks]
    missed: set[str] = set()
    try:
        results = cluster.nodes.run(steps)  # when this is interrupted, the locks may have been taken
        missed = set(results.failures)
        _refuse_held({role: answer["by"] for role, answer in results.answers.items() if not answer["held"]})
        results.all_or_raise("taking the launch lock")
        yield token
    finally:
        cluster.nodes.run(_unlock(step) for step in steps if step.role not in missed)


def _unlock(step: Step) -> Step:
    return Step(step.role, "give the launch lock back", {**step.request, "action": "unlock"}, step.timeout_s)


def _refuse_held(held: Mapping[str, Any]) -> None:
    for role, by in held.items():
        left = max(0, by["until_unix_s"] - time.time())
        since = time.strftime("%H:%M:%S", time.localtime(by["since_unix_s"]))
        hint = f"wait for it; if it was killed, the lock ends by itself in {left:.0f} s"
        raise LaunchError(f"another launch is working on this node: {by['owner']}, since {since}", node=role, hint=hint)
