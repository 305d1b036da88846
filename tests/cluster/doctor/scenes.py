"""A healthy pair of Sparks whose answers a test may change before they are judged."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.doctor.examine import examine
from cluster.doctor.finding import Finding
from cluster.facts.node import Gathered
from cluster.facts.system import Clock
from cluster.facts.transfer import Transfers
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import interface, ran
from tests.cluster.plans import effective

HEAD_IF, WORKER_IF = "enp1s0f1np1", "enp1s0f0np0"


@dataclass
class Pair:
    """Both answers, and what else a scene is made of."""

    head: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(recorded.answer("head")))
    worker: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(recorded.answer("worker")))
    settings: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(-0.1, 0.1))
    kit: str = "spark2"
    transfers: Transfers = field(default_factory=Transfers)

    def findings(self) -> list[Finding]:
        told = {"head": self.head, "worker": self.worker}
        nodes = {role: recorded.facts(role, answer, self.clock) for role, answer in told.items() if role not in self.failures}
        return examine(effective(self.kit, **self.settings), Gathered(nodes, self.failures, self.notes, self.transfers))

    # What tests change, by the name of what it is in the world.

    def links(self, *more: Mapping[str, Any], **changed: Any) -> None:
        """The head's fabric interface with other values, and further interfaces."""
        own = {"address": "10.0.0.1", **changed}
        faces = [recorded.LO, interface(HEAD_IF, own.pop("address"), **own), interface("enP7s7", "192.168.1.11", mtu=1500), *more]
        self.head["runs"]["addr"] = ran(json.dumps(faces))

    def route(self, **row: Any) -> None:
        self.head["runs"]["route 10.0.0.2"] = ran(json.dumps([{"dst": "10.0.0.2", **row}]))

    def gpu(self, role: str = "head", **columns: str) -> None:
        """Columns of nvidia-smi: clock, highest, power, temperature, use."""
        old = {"clock": "208 MHz", "highest": "3003 MHz", "power": "4.53 W", "temperature": " 39,", "use": " 0 %"}
        text = recorded.GPU
        for name, value in columns.items():
            text = text.replace(old[name], value)
        getattr(self, role)["runs"]["gpu"] = ran(text)

    def app(self, memory: str, name: str = "/usr/bin/python3", **process: Any) -> None:
        """A process on the head's GPU, pid 4242."""
        self.head["runs"]["gpu-apps"] = ran(f"pid, process_name, used_gpu_memory [MiB]\n4242, {name}, {memory}\n")
        if process:
            self.process(kind="gpu", **process)

    def process(self, **given: Any) -> None:
        row = {"pid": 4242, "kind": "engine", "name": "python3", "user": "eve", "sid": 4242, "container": None, **given}
        self.head["node"]["processes"]["list"].append(row)

    def containers(self, *rows: Mapping[str, Any]) -> None:
        self.head["runs"]["containers"] = ran("".join(recorded.container(**row) for row in rows))

    def image(self, role: str = "head", **changed: Any) -> None:
        getattr(self, role)["runs"]["image"] = ran(recorded.image(**changed))

    def files(self, role: str = "head", **_: Any) -> dict[str, str]:
        files: dict[str, str] = getattr(self, role)["files"]
        return files

    def folder(self, label: str, **changed: Any) -> None:
        self.head["node"]["folders"][label] |= changed

    def model(self, **changed: Any) -> None:
        self.head["node"]["models"]["model"] |= changed


Change = Callable[[Pair], object]


def changed(*changes: Change) -> Pair:
    pair = Pair()
    for change in changes:
        change(pair)
    return pair


HEALTHY = {
    "gid-auto",
    "memory",
    "nccl-library",
    "settings-advice",
}  # infos that every Spark has; the advice: HOST is 0.0.0.0 and there is no key


def found(*changes: Change, kit: str = "spark2") -> set[str]:
    pair = changed(*changes)
    pair.kit = kit
    return {finding.id for finding in pair.findings()}


def ids(pair: Pair, where: str) -> set[str]:
    return {finding.id for finding in pair.findings() if finding.where == where}
