"""From started to ready: watching every rank until the API answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster import health
from cluster.errors import LaunchError
from cluster.execute import combined
from cluster.plan import LOCK_TTL_S, lock_step
from cluster.probe import Probe, silent_docker
from cluster.ranks import launch
from cluster.session import Cluster, owner

_LOST_CONTACTS = 3  # in a row, before a node counts as gone: one missed look is no reason to take a launch back
_NEWS_EVERY_S = 15.0


@dataclass
class Wait:
    """One wait. `token`: the launch lock to refresh meanwhile, empty for a single-node kit. `say`: told what goes on."""

    cluster: Cluster
    token: str
    say: Callable[[str], None]
    begin: float = field(default_factory=time.monotonic)
    refreshed: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)
    misses: dict[str, int] = field(default_factory=dict)

    def until_ready(self) -> None:
        """Until /health is 200 on the head. Raises as soon as a rank has ended or a node is out of reach for some looks."""
        limit = self.cluster.effective.settings.ready_timeout
        every_s = 0.05 if len(self.cluster.ranks) == 1 else 0.5
        if not health.wait_until(self._ready, limit, every_s):
            probes, _ = self.cluster.probes(lines=8)
            tails = [f"{self.cluster.at(role)}{line}" for role, probe in probes.items() for line in probe.tail]
            ran, head = _command(self.cluster, self.cluster.head), self.cluster.head
            raise LaunchError(f"not ready within {limit:g} s (READY_TIMEOUT)", node=head, ran=ran, tail=tails, hint="invoke logs")

    def _ready(self) -> bool:
        self.refresh()
        probes, failures = self.cluster.probes(lines=30)
        problems = {**failures, **silent_docker(probes)}
        for rank in self.cluster.ranks:
            self.misses[rank.role] = self.misses.get(rank.role, 0) + 1 if rank.role in problems else 0
            if self.misses[rank.role] >= _LOST_CONTACTS:
                raise problems[rank.role]
        heard = {role: probe for role, probe in probes.items() if role not in problems}
        _refuse_ended(self.cluster, heard)
        self._tell(heard)
        return self.cluster.head in heard and heard[self.cluster.head].health == 200

    def refresh(self, every_s: float = LOCK_TTL_S / 4) -> None:
        """Keep the launch lock, unless that was done less than `every_s` seconds ago."""
        if self.token and time.monotonic() - self.refreshed > every_s:
            self.cluster.nodes.run(lock_step(rank, self.token, owner()) for rank in self.cluster.ranks)
            self.refreshed = time.monotonic()

    def _tell(self, probes: Mapping[str, Probe]) -> None:
        """Every quarter of a minute, the last line of each rank's log."""
        if time.monotonic() - self.told < _NEWS_EVERY_S:
            return
        self.told = time.monotonic()
        news = [f"  {role}: {probe.tail[-1][:110]}" for role, probe in probes.items() if probe.tail]
        self.say("\n".join([f"waiting for ready, {self.told - self.begin:.0f} s so far", *news]))


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
