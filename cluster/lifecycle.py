"""up, down and restart of a kit: one rank on this machine or one on each node, by the same steps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from cluster.boot import canary
from cluster.boot.phases import told
from cluster.errors import BadSettings, LaunchError
from cluster.execute import combined
from cluster.images import judge
from cluster.images.identity import summary
from cluster.plan import plan_down, plan_up
from cluster.prepare import prepare
from cluster.probe import Probe
from cluster.session import Cluster, locked
from cluster.settings import difference
from cluster.waiting import Wait

Say = Callable[[str], None]


def up(cluster: Cluster, say: Say) -> Mapping[str, Any]:
    """Start every rank and wait until the server is ready; with the same settings already running, only say so.

    Returns the record of rank 0. Raises BadSettings when another configuration runs, LaunchError when the start fails; a start
    that fails or is interrupted is taken back on every node.
    """
    with locked(cluster) as token:
        probes = cluster.certain_probes()
        running = {role: probe for role, probe in probes.items() if probe.running}
        if running:
            return _already_running(cluster, probes, token, say)
        for role, probe in probes.items():
            if probe.crashed:
                say(f"{cluster.at(role)}the former server is gone ({probe.ending()}); starting anew")
        return _start(cluster, token, say)


def _already_running(cluster: Cluster, probes: Mapping[str, Probe], token: str, say: Say) -> Mapping[str, Any]:
    records = {role: probe.record for role, probe in probes.items() if probe.running and probe.record}
    missing = [role for role in probes if role not in records]
    if missing:
        raise LaunchError(f"kit {cluster.kit} runs on {', '.join(records)} but not on {', '.join(missing)}", hint="invoke restart")
    for record in records.values():
        changes = difference(record["settings"], cluster.effective.fingerprint())
        if changes:
            what = f"kit {cluster.kit} is running with other settings (running -> wanted)"
            raise BadSettings("\n".join([what, *changes]), hint="invoke restart")
    head = records[cluster.head]
    Wait(cluster, token, say).until_ready()
    say(f"kit {cluster.kit} is already running: {head['base_url']}/v1, model {head['model']}")
    return head


def _start(cluster: Cluster, token: str, say: Say, *, doctor: bool = True) -> Mapping[str, Any]:
    boot, begin = secrets.token_hex(4), time.monotonic()
    images = judge.images(cluster.effective, prepare(cluster, token, say, {}, doctor=doctor))
    plan = plan_up(cluster.effective, boot=boot, images={role: summary(image) for role, image in images.items() if image})
    wait = Wait(cluster, token, say)
    try:
        answers: dict[str, Any] = {}
        for stage in plan.stages:
            if stage.name.startswith("start"):
                wait.refresh(0)  # a stage may take most of the lock's time
                answers |= cluster.nodes.stage(stage)
                say(_started(cluster, {step.role: answers[step.role] for step in stage.steps}))
        wait.until_ready()
        wait.edited()
        record: Mapping[str, Any] = answers[cluster.head]["record"]
        if cluster.effective.settings.canary:
            wait.canary(cluster.server(record), canary.plan(cluster.effective))
    except BaseException as error:
        _take_back(cluster, error, say)
        raise
    phases_s = wait.note_phases()
    say(f"ready after {time.monotonic() - begin:.1f} s ({told(phases_s)}): {record['base_url']}/v1, model {record['model']}")
    return {**record, "boot_phases_s": phases_s}


def _take_back(cluster: Cluster, error: BaseException, say: Say) -> None:
    """Stop every rank because of `error`. When a node cannot confirm it, raises LaunchError with both messages."""
    why = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    if len(cluster.ranks) > 1:
        say(f"{why}: taking the start back on every node")
    try:
        _stop_all(cluster, say)
    except (LaunchError, KeyboardInterrupt) as unsure:
        left = f"taking it back failed, a rank may still run there: {str(unsure) or 'interrupted'}"
        if not isinstance(error, LaunchError | KeyboardInterrupt):
            say(left)
            raise error from unsure
        what = f"{error if isinstance(error, LaunchError) else why}\nand {left}"
        raise LaunchError(what, hint="invoke down, as soon as the node answers") from error


def _started(cluster: Cluster, answers: Mapping[str, Any]) -> str:
    """What to say of ranks that were just started."""
    where = f"started on {', '.join(answers)}"
    if len(cluster.ranks) > 1:
        return where
    record = answers[cluster.head]["record"]
    return f"started pid {record['pid']}, log {record['log']}" if "pid" in record else where  # a container has none


def _stop_all(cluster: Cluster, say: Say) -> bool:
    """Stop every rank; whether anything ran. Raises LaunchError when a node could not confirm that nothing is left."""
    results = cluster.nodes.run(plan_down(cluster.effective).stage("stop").steps)
    for role, answer in results.answers.items():
        if answer.get("log"):
            say(f"{cluster.at(role)}log saved as {answer['log']}")
        if answer.get("log_lost"):
            say(f"{cluster.at(role)}the log could not be saved: is the disk of its home full? df")
    errors: list[BaseException] = list(results.failures.values())
    for role, answer in results.answers.items():
        if answer["left"]:
            errors.append(LaunchError(f"{answer['left']} did not end even after SIGKILL", node=role, hint="ps -o pid,stat,cmd; docker ps"))
    if errors:
        raise combined("stopping: unconfirmed", errors)
    return any(answer["was_running"] for answer in results.answers.values())


def down(cluster: Cluster, say: Say) -> None:
    """Stop what this tool started on every node and verify that nothing of it is left. Raises LaunchError when something is."""
    with locked(cluster):
        _down(cluster, say)


def _down(cluster: Cluster, say: Say) -> None:
    probes, _ = cluster.probes()
    crashed = {role: probe for role, probe in probes.items() if probe.crashed}
    was_running = _stop_all(cluster, say)
    for role, probe in crashed.items():
        say(f"{cluster.at(role)}had already ended ({probe.ending()}); cleaned up")
    if was_running or not crashed:
        say(f"kit {cluster.kit} stopped" if was_running else f"kit {cluster.kit} was not running")


def restart(cluster: Cluster, say: Say) -> Mapping[str, Any]:
    """down and up with the new settings. What can be checked before the stop is: a restart that cannot succeed stops nothing."""
    with locked(cluster) as token:
        probes = cluster.certain_probes()
        prepare(cluster, token, say, probes)
        _down(cluster, say)
        return _start(cluster, token, say, doctor=False)
