"""The task `invoke doctor`."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import cli


@cli.task(help={"kit": "a name from kits/ (default: as for up)", "json": "print one JSON document"})
def doctor(ctx: Any, kit: str | None = None, json: bool = False) -> int:
    """Look at every node and say what is wrong, why it matters and what to try; changes nothing; exit 1 with an error."""
    from cluster import session
    from cluster.doctor import examine, table
    from cluster.facts import node
    from cluster.settings import load

    effective = load({"kit": kit})
    with session.opened(effective) as cluster:
        findings = examine.examine(effective, node.gather(effective, cluster.nodes))
    if json:
        print(jsonlib.dumps({"kit": effective.kit.name, "findings": [finding.as_data() for finding in findings]}, indent=2))
    else:
        print(table.table(effective.kit.name, findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0
