"""Running stages: every step of a stage at once, every outcome gathered, then one failure that names all that failed."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.agent_client import ask_agent
from cluster.errors import LaunchError
from cluster.plan import Stage, Step
from cluster.transport import Transport

Answer = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """What each node answered, and what failed where."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    failures: Mapping[str, LaunchError] = field(default_factory=dict)

    def all_or_raise(self, what: str) -> Mapping[str, Answer]:
        """The answers of all nodes. Raises one LaunchError that holds every node's failure."""
        if self.failures:
            raise combined(what, self.failures.values())
        return self.answers


def combined(what: str, errors: Iterable[BaseException]) -> LaunchError:
    """One failure for several nodes; a single one stays as it is."""
    found = list(errors)
    if len(found) == 1 and isinstance(found[0], LaunchError):
        return found[0]
    return LaunchError(f"{what} failed for {len(found)} reasons\n" + "\n".join(str(error) for error in found))


@dataclass(frozen=True)
class Nodes:
    """The transports by role, and the interpreter that runs the agent on each."""

    transports: Mapping[str, Transport]
    python: str

    def run(self, steps: Iterable[Step], *, leave: bool = False) -> Results:
        """All steps at once, one thread per step. Never raises for a step that failed.

        `leave`: for steps that change nothing. Interrupted, they are left to themselves, so that a second Ctrl-C meets what comes next.
        """
        wanted = list(steps)
        pool = concurrent.futures.ThreadPoolExecutor(max(1, len(wanted)))
        try:
            futures = {step.role: pool.submit(self._one, step) for step in wanted}
            concurrent.futures.wait(futures.values())
        finally:
            pool.shutdown(wait=not leave)
        errors = {role: future.exception() for role, future in futures.items()}
        expected = {role: error for role, error in errors.items() if isinstance(error, LaunchError)}
        for error in errors.values():
            if error is not None and not isinstance(error, LaunchError):
                raise error
        return Results({role: future.result() for role, future in futures.items() if role not in expected}, expected)

    def stage(self, stage: Stage) -> Mapping[str, Answer]:
        """All answers of a stage. Raises one LaunchError naming every node that failed."""
        return self.run(stage.steps).all_or_raise(f"stage '{stage.name}'")

    def _one(self, step: Step) -> Answer:
        return ask_agent(self.transports[step.role], step.request, python=self.python, timeout_s=step.timeout_s, shown=step.shown)

    def close(self) -> None:
        for transport in self.transports.values():
            transport.close()
