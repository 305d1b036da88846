"""Nodes whose agents answer as scripted: only the transport is made up."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.transport import Outcome

GIB = 1 << 30


@dataclass
class Node:
    """A node that answers each look from `answers` (the last one for ever; None: out of reach).

    `asked`: every request. `others`: the answers to other actions; without one, that of a lock that was taken.
    """

    role: str
    answers: list[dict[str, Any] | None]
    asked: list[dict[str, Any]] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def node(self) -> str:
        return self.role

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        request = json.loads(json.loads(stdin.rpartition("main(json.loads(")[2].partition(")))\n")[0]))
        self.asked.append(request)
        if request["action"] != "watch_look":
            return Outcome(self.role, tuple(argv), 0, json.dumps(self.others.get(request["action"], {"held": True, "by": None})), "", 0.0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            return Outcome(self.role, tuple(argv), None, "", "", 0.0, failure="no route to host")
        return Outcome(self.role, tuple(argv), 0, json.dumps(answer), "", 0.0)

    def close(self) -> None:
        """Nothing is open."""


def answer(
    at: float, *texts: str, health: int | None = None, running: bool = True, boot_id: str = "k1", state: str = "S", **probe: Any
) -> Any:
    """What the agent says of one look."""
    settings = {"vllm_api_key": None, "port": 18888, "master_port": 29521}
    record = {"boot": "b1", "started_unix_s": 100.0, "health_url": None, "settings": settings}
    seen = {"record": record, "pids": [7] if running else [], "exit_code": None if running else 1, "oom_killed": False, "holder": None}
    more: dict[str, Any] = {
        "gpu": None,
        "peers": {"10.77.0.9": {}},
        "memory_available_bytes": GIB,
        "memory_total_bytes": 2 * GIB,
        "oom_kills": 0,
    }
    watch = {"at_unix_s": at, "boot_id": boot_id, "lines": [[at, text] for text in texts], "cursor": f"c{at}", "cpu_s": 0.0}
    rest = {"holder_is_ours": False, "tail": [], "problem": None, "health": health}
    return {"probe": {**seen, **rest, **probe}, "watch": {**watch, "processes": [[7, "vllm", state]], "cold_cache": False, **more}}
