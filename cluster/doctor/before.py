"""Doctor's part of a launch: its errors refuse it, its warnings are said once."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster import preflight
from cluster.doctor.checks_reach import UNREACHABLE
from cluster.doctor.examine import examine
from cluster.doctor.finding import Finding
from cluster.errors import LaunchError
from cluster.execute import combined
from cluster.facts.node import gather
from cluster.plan import Stage
from cluster.session import Cluster
from cluster.settings import Effective

Checked = Mapping[str, Mapping[str, Any]]


def look(cluster: Cluster, stage: Stage, *, doctor: bool) -> tuple[Checked, list[Finding]]:
    """The answers of the launch's check, and at the same time doctor's findings; none for a single node, or without `doctor`.

    Raises LaunchError when a node does not answer the check.
    """
    if not doctor or len(cluster.ranks) == 1:
        return cluster.nodes.stage(stage), []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(gather, cluster.effective, cluster.nodes)
        checked = cluster.nodes.stage(stage)
        return checked, examine(cluster.effective, gathering.result())


def refuse(effective: Effective, checked: Checked, findings: Sequence[Finding], say: Callable[[str], None]) -> None:
    """Say the warnings; raise one LaunchError with everything that is in the way. Nothing has been started yet.

    A node that answered the check but not doctor's look is only noted: the look itself must not keep a healthy kit from starting.
    """
    for finding in findings:
        if (finding.level == "warning" and not finding.in_check) or finding.id == UNREACHABLE.id:
            say(f"note: {finding.where}: {finding.what} ({finding.id}; try: {finding.hint})")
    errors = preflight.all_problems(effective, checked)
    errors += [
        _error(finding) for finding in findings if finding.level == "error" and not finding.in_check and finding.id != UNREACHABLE.id
    ]
    if errors:
        raise combined("the check before the launch", errors)


def _error(finding: Finding) -> LaunchError:
    what = f"{finding.what} ({finding.id}: {finding.why})"
    return LaunchError(what, node=finding.where, hint=f"{finding.hint}; to start all the same: invoke up --skip-doctor")
