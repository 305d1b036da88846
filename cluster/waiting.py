"""From started to ready: watching every rank until the API answers and the first questions are answered well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster import health
from cluster.boot import ablation, canary, evidence, look, phases, stall
from cluster.boot.evidence import Kept
from cluster.boot.look import Look
from cluster.boot.phases import Phases
from cluster.boot.show import Progress
from cluster.boot.stall import Pulse
from cluster.errors import LaunchError
from cluster.execute import combined
from cluster.plan import LOCK_TTL_S, Step, lock_step, request
from cluster.probe import Probe, silent_docker
from cluster.ranks import Rank, launch
from cluster.session import Cluster, owner

_LOST_CONTACTS = 3  # in a row, before a node counts as gone: one missed look is no reason to take a launch back
_DEEP_EVERY_S = 15.0


@dataclass
class Wait:
    """One wait. `token`: the launch lock to refresh meanwhile, empty for a single-node kit. `say`: told what goes on.

    The rest is what was seen so far, by role.
    """

    cluster: Cluster
    token: str
    say: Callable[[str], None]
    refreshed: float = field(default_factory=time.monotonic)
    asked_at: float = 0.0
    deep_at: float = float("-inf")
    misses: dict[str, int] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    deep: dict[str, Look] = field(default_factory=dict)
    phases: dict[str, Phases] = field(default_factory=dict)
    pulses: dict[str, Pulse] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    edits: dict[str, list[ablation.Summary]] = field(default_factory=dict)

    def until_ready(self) -> None:
        """Until /health is 200 on the head. Raises as soon as a rank has ended, a node is out of reach for some looks, or all stall."""
        limit = self.cluster.effective.settings.ready_timeout
        every_s = 0.05 if len(self.cluster.ranks) == 1 else 1.0
        progress = Progress(self.say)

        def ready() -> bool:
            done = self._look()
            progress.update(self.phases, {role: seen.at_unix_s for role, seen in self.looks.items()})
            return done

        try:
            if not health.wait_until(ready, limit, every_s):
                raise self._late(limit)
        finally:
            progress.close()

    def _late(self, limit: float) -> LaunchError:
        self._ask()
        tails = [f"{self.cluster.at(role)}{line}" for role, kept in self.kept.items() for line in kept.tail()]
        states = [f"{role}: {self._state(role)}" for role in self.looks] if len(self.cluster.ranks) > 1 else []
        what = "\n".join([f"not ready within {limit:g} s (READY_TIMEOUT)", *states])
        return LaunchError(what, node=self.cluster.head, ran=_command(self.cluster, self.cluster.head), tail=tails, hint="invoke logs")

    def _look(self) -> bool:
        """One look at every rank; whether the head's API answers."""
        self.refresh()
        self._ask()
        self._refuse_ended()
        self._refuse_stalled()
        head = self.looks.get(self.cluster.head)
        ready = head is not None and not self.misses[self.cluster.head] and head.probe.health == 200
        if ready and head:
            self.phases = {role: each.enter("canary", self.looks[role].at_unix_s) for role, each in self.phases.items()}
        return ready

    def _ask(self) -> None:
        deep = time.monotonic() - self.deep_at >= _DEEP_EVERY_S or any(self._quiet(role) for role in self.pulses)
        self.deep_at = time.monotonic() if deep else self.deep_at
        cursors = {role: seen.cursor for role, seen in self.looks.items()}
        steps = [look.look_step(rank, cursors.get(rank.role) or "", deep=deep) for rank in self.cluster.ranks]
        results = self.cluster.nodes.run(steps, leave=True)
        self.asked_at = time.monotonic()
        seen = {role: look.read(role, answer) for role, answer in results.answers.items()}
        problems = {**results.failures, **silent_docker({role: each.probe for role, each in seen.items()})}
        for rank in self.cluster.ranks:
            self.misses[rank.role] = self.misses.get(rank.role, 0) + 1 if rank.role in problems else 0
            if self.misses[rank.role] >= _LOST_CONTACTS:
                raise problems[rank.role]
            if rank.role not in problems:
                self._take(rank, seen[rank.role])

    def _quiet(self, role: str) -> bool:
        """Whether a rank has been silent for so long that its GPU should be looked at with every look."""
        pulse = self.pulses[role]
        return self.looks[role].at_unix_s - pulse.progress_at > (self._stall_s() or stall.LIMITS[self.phases[role].phase].idle_s) / 2

    def _stall_s(self) -> float | None:
        return self.cluster.effective.settings.stall_timeout

    def _take(self, rank: Rank, seen: Look) -> None:
        role, before = rank.role, self.looks.get(rank.role)
        if before and before.boot_id != seen.boot_id:
            raise LaunchError("the node has restarted while the ranks were starting", node=role, hint="journalctl --boot=-1 on that node")
        if role not in self.phases:
            began = (seen.probe.record or {}).get("started_unix_s", seen.at_unix_s)
            self.phases[role] = phases.begin(rank.number, began, "process" if launch(rank).runtime == "process" else "container")
            self.pulses[role], self.kept[role] = stall.first(seen), Kept()
        if seen.probe.running:
            self.phases[role] = self.phases[role].enter("process", seen.at_unix_s if before is None else before.at_unix_s)
        self.phases[role] = phases.advance(self.phases[role], seen.lines, rank.kit.engine)
        self.pulses[role] = stall.beat(self.pulses[role], seen)
        self.kept[role].add(seen.lines)
        self.edits.setdefault(role, []).extend(ablation.read(seen.lines))
        self.looks[role] = seen
        if seen.deep:
            self.deep[role] = seen

    def _refuse_ended(self) -> None:
        errors = []
        for rank in self.cluster.ranks:
            seen = self.looks.get(rank.role)
            if seen is None or self.misses[rank.role] or seen.probe.running:
                continue
            errors.append(self._ended(rank, seen.probe))
        if errors:
            raise combined("starting", errors)

    def _ended(self, rank: Rank, probe: Probe) -> LaunchError:
        who, hint = ("the server", "invoke logs") if rank.size == 1 else (f"rank {rank.number}", f"invoke logs --rank {rank.number}")
        what = f"{who} ended while starting ({probe.ending()})"
        cause = evidence.likely(self.kept, known_only=True)
        if probe.oom_killed:
            hint = f"{hint}; give it more memory, or lower GPU_MEM_UTIL or MAX_MODEL_LEN"
        elif cause and cause.signature:
            what, hint = f"{what}\nmost likely: {cause.told()}", f"{hint}; {cause.signature.hint}"
        return LaunchError(what, node=rank.role, ran=_command(self.cluster, rank.role), tail=self.kept[rank.role].tail(30), hint=hint)

    def _refuse_stalled(self) -> None:
        if any(self.misses.values()) or len(self.looks) < len(self.cluster.ranks):
            return  # a node that is out of reach is another failure
        now = {role: seen.at_unix_s for role, seen in self.looks.items()}
        found = stall.judge(self.phases, self.pulses, now, self._stall_s())
        if found:
            states = {role: self._state(role) for role in self.looks}
            raise evidence.stalled(found, states, self.kept, _command(self.cluster, found.role))

    def _state(self, role: str) -> str:
        return evidence.state(self.phases[role], self.pulses[role], self.deep.get(role, self.looks[role]))

    def refresh(self, every_s: float = LOCK_TTL_S / 4) -> None:
        """Keep the launch lock, unless that was done less than `every_s` seconds ago."""
        if self.token and time.monotonic() - self.refreshed > every_s:
            self.cluster.nodes.run(lock_step(rank, self.token, owner()) for rank in self.cluster.ranks)
            self.refreshed = time.monotonic()

    def canary(self, server: health.Server, plan: canary.Plan) -> None:
        """Ask the first questions while the ranks are watched. Raises LaunchError for a bad answer, or as until_ready does."""
        wrong: list[str | None] = []
        done = threading.Event()

        def ask() -> None:
            try:
                wrong.append(canary.check(server, plan))
            finally:
                done.set()

        threading.Thread(target=ask, daemon=True).start()
        while not done.wait(1.0):
            self._look()
        if not wrong or wrong[0]:
            what = f"the server says it is ready, but it is not: {wrong[0] if wrong else 'the canary broke'}"
            hint = (
                "start again; if it stays, take back the settings changed last. CANARY=0 skips this test, CANARY_EXPECT= the fixed answer"
            )
            raise LaunchError(what, node=self.cluster.head, ran=f"{server.base_url}/v1/chat/completions", hint=hint)

    def edited(self) -> None:
        """With ABLIT=1: every rank has reported the same edit. Raises LaunchError otherwise."""
        if not self.cluster.effective.settings.ablit:
            return
        if len(self.edits) < len(self.cluster.ranks) or not all(self.edits.values()):
            self._ask()  # a look that was missed may be the one that had it
        wrong = ablation.judge({rank.role: rank.number for rank in self.cluster.ranks}, self.edits)
        if wrong:
            hint = "ABLIT needs the plugin vllm-glm-exl3 in the image, and ABLIT_* variables and files that are the same on every node"
            raise LaunchError(f"the edit at load cannot be trusted: {wrong}", node=self.cluster.head, hint=f"{hint}; invoke logs")
        for line in ablation.told(self.edits[self.cluster.head], len(self.cluster.ranks)):
            self.say(line)

    def note_phases(self) -> Mapping[str, float]:
        """Write the seconds of each phase into the record of each rank. Returns those of rank 0."""
        since_s = time.monotonic() - self.asked_at
        self.phases = {role: each.enter("ready", self.looks[role].at_unix_s + since_s) for role, each in self.phases.items()}
        noted = {role: each.durations_s() for role, each in self.phases.items()}
        self.cluster.nodes.run(_note(rank, self.looks[rank.role], self._notes(rank.role, noted)) for rank in self.cluster.ranks)
        return noted[self.cluster.head]

    def _notes(self, role: str, durations_s: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
        edits = ablation.noted(self.edits.get(role, ()))
        return {"boot_phases_s": durations_s[role], **({"ablation": edits} if edits else {})}


def _note(rank: Rank, seen: Look, notes: Mapping[str, object]) -> Step:
    boot = (seen.probe.record or {}).get("boot", "")
    return Step(rank.role, "remember the times of the start", request(rank, "watch_note", boot=boot, notes=notes), 15)


def _command(cluster: Cluster, role: str) -> str:
    """The command that starts the rank of `role`, secrets masked."""
    return next(launch(rank).shown() for rank in cluster.ranks if rank.role == role)
