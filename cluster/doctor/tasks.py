"""The task `invoke doctor`."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import cli


@cli.task(
    help={
        "kit": "a name from kits/ (default: as for up)",
        "json": "print one JSON document",
        "transfer": "also move up to 4 GiB or 2 s of data each way between the head and every other node",
        "force": "with --transfer: also while ranks run",
    }
)
def doctor(ctx: Any, kit: str | None = None, json: bool = False, transfer: bool = False, force: bool = False) -> int:
    """Look at every node and say what is wrong, why it matters and what to try; changes nothing; exit 1 with an error."""
    import dataclasses

    from cluster import session
    from cluster.doctor import examine, table
    from cluster.doctor import transfer as transfers
    from cluster.facts import node
    from cluster.settings import load

    effective = load({"kit": kit})
    with session.opened(effective) as cluster:
        gathered = node.gather(effective, cluster.nodes)
        if transfer:
            gathered = dataclasses.replace(gathered, transfers=transfers.measure(cluster, gathered, force=force))
        findings = examine.examine(effective, gathered)
    if json:
        print(jsonlib.dumps({"kit": effective.kit.name, "findings": [finding.as_data() for finding in findings]}, indent=2))
    else:
        print(table.table(effective.kit.name, findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0
