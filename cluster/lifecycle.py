"""up, down, restart and status of a kit: one rank on this machine or one on each node, by the same steps."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster import health, preflight, state, weights
from cluster.connect import connect
from cluster.errors import BadSettings, LaunchError
from cluster.execute import Nodes, combined
from cluster.plan import LOCK_TTL_S, lock_step, plan_down, plan_up, probe_step
from cluster.ranks import Rank, launch, ranks
from cluster.settings import Effective, difference

Say = Callable[[str], None]
_LOST_CONTACTS = 3  # in a row, before a node counts as gone: one missed look is no reason to take a launch back


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
        return {role: _probe(role, answer) for role, answer in results.answers.items()}, results.failures

    def certain_probes(self) -> dict[str, Probe]:
        """A probe of every node. Raises LaunchError when one does not answer or its docker does not."""
        probes, failures = self.probes()
        broken = [LaunchError(f"docker does not answer: {p.problem}", node=role) for role, p in probes.items() if p.problem]
        if failures or broken:
            raise combined("looking at the nodes", [*failures.values(), *broken])
        return probes

    def head_record(self) -> Mapping[str, Any] | None:
        """The record of a running rank 0, or None."""
        probes, failures = self.probes()
        if self.head in failures:
            raise failures[self.head]
        return probes[self.head].record if probes[self.head].running else None

    def server(self, record: Mapping[str, Any]) -> health.Server:
        return health.Server(record["base_url"], record["model"], self.effective.settings.vllm_api_key)


def _probe(role: str, answer: Mapping[str, Any]) -> Probe:
    return Probe(role, **{**answer, "pids": tuple(answer["pids"]), "tail": tuple(answer["tail"])})


@contextlib.contextmanager
def opened(effective: Effective) -> Iterator[Cluster]:
    """The cluster, with its connections closed in the end."""
    python = sys.executable if effective.kit.topology == "single" else "python3"
    nodes = Nodes({rank.role: connect(rank.role, rank.node, effective) for rank in ranks(effective)}, python)
    try:
        yield Cluster(effective, nodes)
    finally:
        nodes.close()


def _owner() -> str:
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
    token, owner = secrets.token_hex(8), _owner()
    steps = [lock_step(rank, token, owner) for rank in cluster.ranks]
    results = cluster.nodes.run(steps)
    try:
        _refuse_held({role: answer["by"] for role, answer in results.answers.items() if not answer["held"]})
        results.all_or_raise("taking the launch lock")
        yield token
    finally:
        unlocks = [step for step in steps if step.role in results.answers]
        cluster.nodes.run(_unlock(step) for step in unlocks)


def _unlock(step: Any) -> Any:
    return type(step)(step.role, "give the launch lock back", {**step.request, "action": "unlock"}, step.timeout_s)


def _refuse_held(held: Mapping[str, Any]) -> None:
    for role, by in held.items():
        left = max(0, by["until_unix_s"] - time.time())
        since = time.strftime("%H:%M:%S", time.localtime(by["since_unix_s"]))
        hint = f"wait for it; if it was killed, the lock ends by itself in {left:.0f} s"
        raise LaunchError(f"another launch is working on this node: {by['owner']}, since {since}", node=role, hint=hint)


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
    _wait_ready(cluster, token)
    say(f"kit {cluster.kit} is already running: {head['base_url']}/v1, model {head['model']}")
    return head


def _start(cluster: Cluster, token: str, say: Say) -> Mapping[str, Any]:
    boot, begin = secrets.token_hex(4), time.monotonic()
    plan = plan_up(cluster.effective, boot=boot)
    if cluster.effective.kit.engine == "llama":
        weights.fetch(weights.SMOLLM2, say)
    preflight.refuse(cluster.effective, cluster.nodes.stage(plan.stage("check")))
    try:
        answers: dict[str, Any] = {}
        for stage in plan.stages:
            if stage.name.startswith("start"):
                answers |= cluster.nodes.stage(stage)
                say(_started(cluster, {step.role: answers[step.role] for step in stage.steps}))
        _wait_ready(cluster, token)
    except BaseException as error:
        if len(cluster.ranks) > 1:
            say(f"{'interrupted' if isinstance(error, KeyboardInterrupt) else 'failed'}: taking the start back on every node")
        _stop_all(cluster, say)
        raise
    record: Mapping[str, Any] = answers[cluster.head]["record"]
    say(f"ready after {time.monotonic() - begin:.1f} s: {record['base_url']}/v1, model {record['model']}, log {record['log']}")
    return record


def _started(cluster: Cluster, answers: Mapping[str, Any]) -> str:
    """What to say of ranks that were just started."""
    if len(cluster.ranks) > 1:
        return f"started on {', '.join(answers)}"
    record = answers[cluster.head]["record"]
    return f"started pid {record['pid']}, log {record['log']}"


def _wait_ready(cluster: Cluster, token: str) -> None:
    """Until /health is 200 on the head. Raises as soon as a rank has ended or a node is out of reach for some looks."""
    limit = cluster.effective.settings.ready_timeout
    misses = dict.fromkeys((rank.role for rank in cluster.ranks), 0)
    refreshed = time.monotonic()

    def ready() -> bool:
        nonlocal refreshed
        if token and time.monotonic() - refreshed > LOCK_TTL_S / 4:
            cluster.nodes.run(lock_step(rank, token, _owner()) for rank in cluster.ranks)
            refreshed = time.monotonic()
        probes, failures = cluster.probes(lines=30)
        problems = {**failures} | {role: LaunchError(f"docker: {p.problem}", node=role) for role, p in probes.items() if p.problem}
        for role in misses:
            misses[role] = misses[role] + 1 if role in problems else 0
            if misses[role] >= _LOST_CONTACTS:
                raise problems[role]
        _refuse_ended(cluster, {role: probe for role, probe in probes.items() if role not in problems})
        return cluster.head in probes and probes[cluster.head].health == 200

    single = cluster.effective.kit.topology == "single"
    if not health.wait_until(ready, limit, 0.05 if single else 0.5):
        probes, _ = cluster.probes(lines=8)
        tails = [f"{cluster.at(role)}{line}" for role, probe in probes.items() for line in probe.tail]
        ran = _command(cluster, cluster.head)
        raise LaunchError(f"not ready within {limit:g} s (READY_TIMEOUT)", node=cluster.head, ran=ran, tail=tails, hint="invoke logs")


def _refuse_ended(cluster: Cluster, probes: Mapping[str, Probe]) -> None:
    errors = []
    for rank in cluster.ranks:
        probe = probes.get(rank.role)
        if probe is None or probe.running:
            continue
        who, hint = ("the server", "invoke logs") if rank.size == 1 else (f"rank {rank.number}", f"invoke logs --rank {rank.number}")
        what = f"{who} ended while starting ({probe.ending()})"
        errors.append(LaunchError(what, node=rank.role, ran=_command(cluster, rank.role), tail=probe.tail, hint=hint))
    if errors:
        raise combined("starting", errors)


def _command(cluster: Cluster, role: str) -> str:
    """The command that starts the rank of `role`, secrets masked."""
    return next(launch(rank).shown() for rank in cluster.ranks if rank.role == role)


def _stop_all(cluster: Cluster, say: Say) -> bool:
    """Stop every rank; whether anything ran. Raises LaunchError when a node could not confirm that nothing is left."""
    results = cluster.nodes.run(plan_down(cluster.effective).stage("stop").steps)
    for role, answer in results.answers.items():
        if answer.get("log"):
            say(f"{cluster.at(role)}log saved as {answer['log']}")
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
    """down and up with the new settings, which were validated before anything is stopped."""
    with locked(cluster) as token:
        _down(cluster, say)
        return _start(cluster, token, say)
