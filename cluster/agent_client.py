"""Asking the node agent: one request over one transport, as a program on the stdin of the node's own python3."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.errors import DOCKER_HINT
from cluster.transport import Transport

_PARTS = ("agent.py", "agent_cluster.py")
# Parts that only some actions need, by the first word of the action: what every call sends stays small.
_MORE = {
    "weights": ("agent_weights.py",),
    "sync": ("agent_weights.py", "agent_sync.py"),
    "images": ("agent_images.py",),
    "ship": ("agent_images.py", "agent_ship.py"),
    "facts": ("agent_nccl.py", "agent_facts.py"),
    "transfer": ("agent_transfer.py",),
    "watch": ("agent_watch.py",),
    "place": ("agent_place.py",),
}


@functools.cache
def _source(topic: str) -> str:
    return "\n".join(Path(__file__).with_name(name).read_text() for name in (*_PARTS, *_MORE.get(topic, ())))


def ask_agent(
    transport: Transport, request: Mapping[str, Any], *, python: str = sys.executable, timeout_s: float = 30, shown: str = ""
) -> dict[str, Any]:
    """The agent's answer to one request. `shown` is what to call the command in a failure. Raises LaunchError."""
    program = f"{_source(request['action'].partition('_')[0])}\nraise SystemExit(main(json.loads({json.dumps(json.dumps(request))})))\n"
    outcome = transport.run([python, "-"], stdin=program, timeout_s=timeout_s)
    if outcome.code != 0:
        verb = request["action"].rpartition("_")[2].replace("look", "look at")
        named = dataclasses.replace(outcome, argv=(shown,)) if shown else outcome
        hint = DOCKER_HINT if "docker does not answer" in outcome.stderr else "on that node: docker ps --all; df -h; free -h"
        raise named.error(f"the node agent could not {verb} {request['name']}", hint)
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer
