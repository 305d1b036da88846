"""Asking every node what it holds of the served snapshots, and judging the answers together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import LaunchError
from cluster.execute import combined
from cluster.plan import Step, run_dir
from cluster.ranks import Rank
from cluster.session import Cluster
from cluster.transport import LocalTransport
from cluster.weights import held as facts
from cluster.weights import manifest as manifests
from cluster.weights import nfs
from cluster.weights.held import Finding, Held
from cluster.weights.manifest import Manifest
from cluster.weights.snapshots import Snapshot, scan_request, snapshots, state_dir

SCAN_LIMIT_S = 300.0  # the first look reads every header; on a slow disk that takes a while
Say = Callable[[str], None]


def head_is_here(cluster: Cluster) -> bool:
    """Whether the head is this machine: only then can this process write into its cache."""
    return isinstance(cluster.nodes.transports[cluster.head], LocalTransport)


def request(rank: Rank, action: str, **more: Any) -> dict[str, Any]:
    """A request to the agent's parts for weights on the rank's node."""
    return {"action": action, "name": "the weights", "state_dir": state_dir(run_dir(rank)), "run_dir": run_dir(rank), **more}


@dataclass
class View:
    """What the nodes hold, by role and in the order of the snapshots, with the manifest of each snapshot.

    failures: the nodes that did not answer.
    """

    cluster: Cluster
    snapshots: tuple[Snapshot, ...]
    held: dict[str, tuple[Held, ...]] = field(default_factory=dict)
    failures: dict[str, LaunchError] = field(default_factory=dict)
    manifests: dict[Snapshot, Manifest | None] = field(default_factory=dict)

    @property
    def ranks(self) -> Mapping[str, Rank]:
        return {rank.role: rank for rank in self.cluster.ranks}

    @property
    def workers(self) -> list[Rank]:
        return list(self.cluster.ranks[1:])

    def of(self, role: str, snapshot: Snapshot) -> Held:
        return next(held for held in self.held[role] if held.snapshot == snapshot)

    def findings(self, role: str, snapshot: Snapshot) -> list[Finding]:
        """What is wrong with one snapshot on one node."""
        is_head = role == self.cluster.head
        head = None if is_head or self.cluster.head not in self.held else self.of(self.cluster.head, snapshot)
        repair = self.repair(role, snapshot)
        return facts.findings(self.of(role, snapshot), self.manifests.get(snapshot), head, repair)

    def repair(self, role: str, snapshot: Snapshot) -> str:
        """The command that repairs a snapshot on a node."""
        if role == self.cluster.head:
            return f"copy the model into {snapshot.repo} again" if snapshot.is_folder else "invoke download"
        return "\n".join(nfs.commands(self, self.ranks[role])) if self.ranks[role].settings.nfs_share else "invoke resync"

    def refresh(self, roles: Iterable[str]) -> None:
        """Ask these nodes again; manifests are made of a head that is complete."""
        wanted = [rank for rank in self.cluster.ranks if rank.role in set(roles)]
        steps = [Step(r.role, "look at the weights", scan_request(r, self.snapshots, run_dir(r)), SCAN_LIMIT_S) for r in wanted]
        self.accept(self.cluster.nodes.run(steps))

    def accept(self, results: Any) -> None:
        for role, answer in results.answers.items():
            pairs = zip(self.snapshots, answer["snapshots"], strict=True)
            self.held[role] = tuple(facts.read(role, snapshot, one) for snapshot, one in pairs)
            self.failures.pop(role, None)
        self.failures |= results.failures

    def load_manifests(self, say: Say) -> None:
        """The manifests that are kept here. Where there is none, a complete head is taken as the measure and written down."""
        for snapshot in self.snapshots:
            found, note = manifests.load(snapshot)
            if note:
                say(f"note: {note}")
            self.manifests[snapshot] = None if snapshot.is_folder else found
            self.make_manifest(snapshot)

    def make_manifest(self, snapshot: Snapshot) -> None:
        if self.manifests.get(snapshot) or self.cluster.head not in self.held:
            return
        head = self.of(self.cluster.head, snapshot)
        if not self.findings(self.cluster.head, snapshot):
            self.manifests[snapshot] = made = manifests.new(snapshot, "files", facts.from_files(head))
            manifests.save(snapshot, made)

    def raise_failures(self) -> None:
        if self.failures:
            raise combined("looking at the weights", self.failures.values())


def look(cluster: Cluster, say: Say, roles: Iterable[str] | None = None) -> View:
    """One request to each node (or those of `roles`), all at once. Nodes that fail are in `failures`."""
    view = View(cluster, snapshots(cluster.effective))
    view.refresh([rank.role for rank in cluster.ranks] if roles is None else roles)
    view.load_manifests(say)
    return view


def refuse(role: str, found: list[Finding], what: str) -> LaunchError:
    """One failure that names the first findings of a node."""
    shown = [each.text() for each in found[:8]] + ([f"and {len(found) - 8} more: invoke verify"] if len(found) > 8 else [])
    return LaunchError("\n".join([what, *shown]), node=role, hint=found[0].repair)
