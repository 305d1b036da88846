"""What one look at a node's rank found, as the node agent answered."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import DOCKER_HINT, LaunchError


@dataclass(frozen=True)
class Probe:
    """What one node's agent saw: our record and its living pids, how the rank ended, who holds the port, /health."""

    role: str
    record: Mapping[str, Any] | None
    pids: tuple[int, ...]
    exit_code: int | None
    oom_killed: bool
    holder: Mapping[str, Any] | None
    holder_is_ours: bool
    tail: tuple[str, ...]
    problem: str | None
    health: int | None

    @property
    def running(self) -> bool:
        return bool(self.pids)

    @property
    def crashed(self) -> bool:
        """There is a record, but the rank ended without `down`."""
        return self.record is not None and not self.pids

    def ending(self) -> str:
        """How a crashed rank ended, in words."""
        if self.oom_killed:
            return "killed for lack of memory (OOM)"
        if self.exit_code is None:
            return "ended without an exit code: killed together with its session, or the machine restarted"
        if self.exit_code - 128 in set(signal.Signals):
            return f"killed by {signal.Signals(self.exit_code - 128).name}"
        return f"exit {self.exit_code}"


def silent_docker(probes: Mapping[str, Probe]) -> dict[str, LaunchError]:
    """A failure for every node whose docker did not answer, by role."""
    silent = {role: f"docker does not answer: {probe.problem}" for role, probe in probes.items() if probe.problem}
    return {role: LaunchError(what, node=role, ran="docker version", hint=DOCKER_HINT) for role, what in silent.items()}


def read(role: str, answer: Mapping[str, Any]) -> Probe:
    """The answer of the node agent to a probe."""
    return Probe(role, **{**answer, "pids": tuple(answer["pids"]), "tail": tuple(answer["tail"])})
