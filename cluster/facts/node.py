"""All facts of one node, and of a kit: asked once of each node, at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.execute import Nodes
from cluster.facts import docker, gpu, memory, nccl, network, rdma, storage, system, transfer
from cluster.facts.raw import Raw
from cluster.facts.request import facts_step
from cluster.ranks import ranks
from cluster.settings import Effective
from cluster.transport import Outcome, Transport


@dataclass(frozen=True)
class Facts:
    """What one look at the node of `role` found.

    gpu_unknown: nvidia-smi did not say whether there is a GPU. ports: TCP port -> who listens there, None: nobody. lock: the launch
    lock's text.
    """

    role: str
    rdma: rdma.Rdma
    network: network.Network
    gpu: gpu.Gpu | None
    gpu_unknown: bool
    memory: memory.Memory
    docker: docker.Docker
    system: system.System
    storage: storage.Storage
    ports: Mapping[int, Mapping[str, Any] | None]
    record: Mapping[str, Any] | None
    lock: str | None
    nccl: nccl.Nccl = field(default_factory=nccl.Nccl)


def read(role: str, answer: Mapping[str, Any], clock: system.Clock | None = None) -> Facts:
    """The agent's answer (cluster/agent_facts.py), parsed."""
    raw = Raw(answer["files"], answer["runs"], answer["node"])
    ports = {int(port): holder for port, holder in (raw.node.get("ports") or {}).items()}
    return Facts(
        role=role,
        rdma=rdma.parse(raw),
        network=network.parse(raw),
        gpu=gpu.parse(raw),
        gpu_unknown=gpu.unknown(raw),
        memory=memory.parse(raw),
        docker=docker.parse(raw),
        system=system.parse(raw, clock),
        storage=storage.parse(raw),
        ports=ports,
        record=raw.node.get("record"),
        lock=raw.node.get("lock") or None,
        nccl=nccl.parse(raw),
    )


@dataclass(frozen=True)
class Gathered:
    """The facts of every node that answered, why the others did not, remarks on the log-in, and transfers where they were asked for."""

    nodes: Mapping[str, Facts]
    failures: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    transfers: transfer.Transfers = field(default_factory=transfer.Transfers)


@dataclass
class _Timed:
    """A transport that remembers when its last command was sent and answered."""

    inner: Transport
    sent_unix_s: float = 0
    received_unix_s: float = 0

    @property
    def node(self) -> str:
        return self.inner.node

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        self.sent_unix_s = time.time()
        outcome = self.inner.run(argv, stdin=stdin, timeout_s=timeout_s)
        self.received_unix_s = time.time()
        return outcome

    def close(self) -> None:
        self.inner.close()


def gather(effective: Effective, nodes: Nodes) -> Gathered:
    """Ask every node at once. A node that does not answer is a failure in the result, never an exception."""
    timed = {role: _Timed(transport) for role, transport in nodes.transports.items()}
    known = nccl.remembered(effective.kit.name)
    results = Nodes(timed, nodes.python).run(facts_step(rank, known) for rank in ranks(effective))
    nccl.completed(effective.kit.name, results.answers, known)
    found = {role: read(role, answer, _clock(timed[role], answer["clock"])) for role, answer in results.answers.items()}
    said = {role: tuple(getattr(transport, "notes", ())) for role, transport in nodes.transports.items()}
    failures = {role: str(error) for role, error in results.failures.items()}
    return Gathered(found, failures, {role: notes for role, notes in said.items() if notes})


def _clock(timed: _Timed, told: Mapping[str, float]) -> system.Clock:
    return system.clock_offset(timed.sent_unix_s, told["begin_unix_s"], told["end_unix_s"], timed.received_unix_s)
