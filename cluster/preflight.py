"""Judging what the agents saw before a launch. Pure: facts in, one refusal with everything that is wrong out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.errors import DOCKER_HINT, LaunchError
from cluster.execute import combined
from cluster.images import judge
from cluster.settings import Effective

_ENOUGH_BYTES = 1 << 30  # for compile caches and logs


def refuse(effective: Effective, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise one LaunchError that names everything in the way of a launch, node by node. Nothing has been started yet."""
    errors = all_problems(effective, facts)
    if errors:
        raise combined("the check before the launch", errors)


def all_problems(effective: Effective, facts: Mapping[str, Mapping[str, Any]]) -> list[LaunchError]:
    """Everything in the way of a launch, node by node, and what its images lack."""
    return [error for role, seen in facts.items() for error in problems(role, seen)] + judge.problems(
        effective, judge.images(effective, facts)
    )


def problems(role: str, seen: Mapping[str, Any]) -> list[LaunchError]:
    """Everything that is in the way on one node, but for its image; `seen` is the answer of the agent's preflight."""
    found: list[LaunchError] = []

    def wrong(what: str, hint: str, ran: str = "") -> None:
        found.append(LaunchError(what, node=role, ran=ran, hint=hint))

    if seen["docker_error"]:
        wrong(f"docker does not answer: {seen['docker_error']}", DOCKER_HINT, "docker version")
    if seen["missing_paths"]:
        wrong(f"missing: {', '.join(seen['missing_paths'])}", "check MODEL and the node's VENV setting")
    if seen["unwritable"]:
        wrong(f"cannot write to {', '.join(seen['unwritable'])}", "fix the owner, or set the node's CACHE_ROOT")
    folder, free = min(seen["free"].items(), key=lambda pair: pair[1], default=("", _ENOUGH_BYTES))
    if free < _ENOUGH_BYTES:
        wrong(f"only {free / 2**20:.0f} MiB are free for {folder}; 1 GiB is needed", "free some space, or set the node's CACHE_ROOT", "df")
    if seen["foreign_container"]:
        wrong("a container of the rank's name exists that this tool did not make", "rename or remove it: docker rm")
    return found + [_busy(role, port, holder) for port, holder in seen["ports"].items() if holder]


def _busy(role: str, port: str, holder: Mapping[str, Any]) -> LaunchError:
    who = f"pid {holder['pid']} of {holder['user']}: {holder['command']}" if holder["pid"] else "a process of another user"
    hint = "stop that process, or choose another port: PORT=... (MASTER_PORT=... for the ranks) invoke up"
    return LaunchError(f"port {port} is in use by {who}; this tool did not start it", node=role, hint=hint)
