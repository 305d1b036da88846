"""Showing a rank's log from its node, once or as it grows."""

from __future__ import annotations

import time

from cluster.errors import BadSettings, LaunchError
from cluster.plan import Step, request
from cluster.session import Cluster

_EVERY_S = 1.0


def show(cluster: Cluster, number: int, lines: int, *, follow: bool) -> None:
    """Print the last `lines` lines of rank `number`'s log; with `follow`, new ones as they come, until Ctrl-C."""
    found = next((rank for rank in cluster.ranks if rank.number == number), None)
    if found is None:
        raise BadSettings(f"--rank is {number}; kit {cluster.kit} has ranks 0 to {len(cluster.ranks) - 1}")
    step = Step(found.role, "read the log", request(found, "log", lines=lines), 30)
    shown: list[str] = []
    while True:
        answer = cluster.nodes.run([step]).all_or_raise("reading the log")[found.role]
        if answer["path"] is None:
            who = f"kit {cluster.kit}" if found.size == 1 else f"{found.role}: rank {number} of kit {cluster.kit}"
            raise LaunchError(f"{who} has no log yet", hint="invoke up")
        fresh = new_lines(shown, answer["lines"])
        print("\n".join(fresh), flush=True) if fresh else None
        shown = answer["lines"]
        if not follow:
            return
        time.sleep(_EVERY_S)


def new_lines(before: list[str], now: list[str]) -> list[str]:
    """The lines of `now` that follow the last stretch of `before`; all of them when nothing overlaps."""
    for start in range(len(before)):
        overlap = before[start:]
        if now[: len(overlap)] == overlap:
            return now[len(overlap) :]
    return now
