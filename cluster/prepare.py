"""Between the lock and the first start: the check of every node, doctor's look, the right image and the weights on every node.

What can be refused cheaply is refused before anything is moved. With everything in place this costs one request of each kind per
node: check and doctor at the same time, then the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster import preflight, selfcheck, weights
from cluster.doctor import before
from cluster.images import ensure as images
from cluster.images import judge
from cluster.plan import plan_up
from cluster.probe import Probe
from cluster.ranks import ranks
from cluster.session import Cluster
from cluster.settings import Effective
from cluster.waiting import Wait
from cluster.weights import ensure
from cluster.weights.snapshots import snapshots

Seen = Mapping[str, Mapping[str, Any]]


def prepare(cluster: Cluster, token: str, say: Callable[[str], None], probes: Mapping[str, Probe], *, doctor: bool = True) -> Seen:
    """What the check of every node saw in the end. `probes`: ranks that run and will be stopped, whose ports count as free.

    Raises LaunchError naming everything in the way, node by node. Nothing has been started then.
    """
    effective, wait = cluster.effective, Wait(cluster, token, say)
    if effective.kit.engine == "llama":
        weights.fetch(weights.SMOLLM2, say)
    check = plan_up(effective).stage("check")
    answers, findings = before.look(cluster, check, doctor=doctor and not effective.settings.skip_doctor)
    seen = _without_own_ports(answers, probes)
    before.refuse(effective, without_what_comes(effective, seen), findings, say)
    moved = images.settle(cluster, token, say, seen)
    ensure.ensure(cluster, say, wait.refresh)
    wait.refresh(0)
    if moved or any(facts["missing_paths"] for facts in seen.values()):
        seen = _without_own_ports(cluster.nodes.stage(check), probes)
    preflight.refuse(effective, seen)
    selfcheck.run(cluster, token, say, judge.images(effective, seen))
    return seen


def _without_own_ports(seen: Seen, probes: Mapping[str, Probe]) -> dict[str, Any]:
    """The facts of the check, without the ports that the running ranks hold and will give free."""
    settings = [probe.record["settings"] for probe in probes.values() if probe.running and probe.record]
    own = {str(each[name]) for each in settings for name in ("port", "master_port")}
    return {role: {**facts, "ports": {p: holder for p, holder in facts["ports"].items() if p not in own}} for role, facts in seen.items()}


def without_what_comes(effective: Effective, seen: Seen) -> dict[str, Any]:
    """The facts of the check, without missing model folders that a download or a copy will bring: they are looked at again then."""
    s, wanted, left = effective.settings, snapshots(effective), dict[str, Any]()
    at_head = set[str]()
    for rank in ranks(effective):
        missing, folders = seen[rank.role]["missing_paths"], {each.label: each.folder(rank.node) for each in wanted}
        if rank.number == 0:
            coming = {each.label for each in wanted if not each.is_folder and not s.skip_download}
            at_head = coming | {label for label, folder in folders.items() if folder not in missing}
        else:
            coming = set() if s.skip_sync or s.nfs_share else at_head
        brought = {folders[label] for label in coming}
        left[rank.role] = {**seen[rank.role], "missing_paths": [path for path in missing if path not in brought]}
    return left
