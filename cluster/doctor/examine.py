"""All checks and all kinds of finding; one examination of a kit."""

from __future__ import annotations

from cluster.doctor import (
    checks_docker,
    checks_gpu,
    checks_nccl,
    checks_network,
    checks_rdma,
    checks_reach,
    checks_storage,
    checks_system,
    checks_transfer,
)
from cluster.doctor.finding import Check, Finding, Kind, Scene, ranked
from cluster.facts.node import Gathered
from cluster.settings import Effective

_MODULES = (
    checks_reach, checks_network, checks_rdma, checks_nccl, checks_gpu, checks_docker, checks_storage, checks_system, checks_transfer,
)  # fmt: skip
CHECKS: tuple[Check, ...] = tuple(check for module in _MODULES for check in module.CHECKS)
KINDS: dict[str, Kind] = {each.id: each for module in _MODULES for each in vars(module).values() if isinstance(each, Kind)}


def examine(effective: Effective, gathered: Gathered) -> list[Finding]:
    """Every finding, errors first."""
    scene = Scene(effective, gathered)
    return ranked(finding for check in CHECKS for finding in check(scene))


def documented() -> str:
    """Every kind as a row of a markdown table, for docs/field-reports.md."""
    rows = [f"| `{kind.id}` | {kind.level} | {kind.why} | {kind.reports} |" for kind in KINDS.values()]
    return "\n".join(["| finding | level | why it matters | reports |", "| --- | --- | --- | --- |", *rows, ""])
