"""What a check finds: its kind (the same wherever it is found), where, the value found and the value expected, what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.facts.node import Facts, Gathered
from cluster.settings import Effective

Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")
CLUSTER = "cluster"  # where: more than one node


@dataclass(frozen=True)
class Kind:
    """One thing that can be found. error: a launch would fail or hang. why: what it leads to. reports: entries of the field reports.

    in_check: the launch's own steps refuse it, tell it or put it right, so `up` does not say it twice.
    """

    id: str
    level: Level
    why: str
    reports: str = ""
    in_check: bool = False

    def at(self, where: str, what: str, hint: str) -> Finding:
        return Finding(self.id, self.level, where, what, self.why, hint, self.in_check)


@dataclass(frozen=True)
class Finding:
    """One line of doctor's table; see Kind."""

    id: str
    level: Level
    where: str
    what: str
    why: str
    hint: str
    in_check: bool = False

    def as_data(self) -> dict[str, str]:
        return {"id": self.id, "level": self.level, "where": self.where, "what": self.what, "why": self.why, "try": self.hint}


@dataclass(frozen=True)
class Scene:
    """All that checks look at: the settings, and what every node told."""

    effective: Effective
    gathered: Gathered

    @property
    def nodes(self) -> Mapping[str, Facts]:
        return self.gathered.nodes

    @property
    def sparks(self) -> bool:
        return self.effective.kit.hardware == "gb10"

    @property
    def several(self) -> bool:
        return len(self.effective.kit.nodes) > 1

    @property
    def docker(self) -> bool:
        """Whether ranks run in containers."""
        return self.effective.kit.engine == "vllm" and self.effective.settings.runtime == "docker"

    @property
    def direct(self) -> bool:
        """Whether every node reaches every other on the device of its own address: not in a triangle or ring, a cable a pair."""
        return self.effective.kit.topology in ("pair", "switched")

    def address(self, role: str) -> str | None:
        return self.effective.settings.node(role).ip

    def peers(self, role: str) -> dict[str, str]:
        """Role -> address of every other node that has one."""
        others = {other: self.address(other) for other in self.effective.kit.nodes if other != role}
        return {other: address for other, address in others.items() if address}

    def variable(self, role: str, name: str) -> str:
        """What a setting of one node is called: HEAD_GID."""
        return f"{'head' if role == 'local' else role}_{name}".upper()


Check = Callable[[Scene], Iterable[Finding]]


def each_node(check: Callable[[Facts, Scene], Iterator[Finding]]) -> Check:
    """A check of one node as a check of all that answered."""
    return lambda scene: (finding for facts in scene.nodes.values() for finding in check(facts, scene))


def differing(values: Mapping[str, object]) -> str:
    """`head 1500, worker 9000` when the known values are not all the same, else empty."""
    known = {role: value for role, value in values.items() if value is not None}
    return ", ".join(f"{role} {value}" for role, value in known.items()) if len({*known.values()}) > 1 else ""


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then infos; within a level in the order they were found; the same thing said once."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda finding: LEVELS.index(finding.level))
