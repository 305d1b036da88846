"""Logs of real starts, as `docker logs --timestamps` gives them, and shorthand for lines made up from vLLM's sources."""

from pathlib import Path
from typing import Any

from cluster import agent_watch
from cluster.boot.look import Line

AGENT: Any = agent_watch  # a node's part has no types
FOLDER = Path(__file__).resolve().parents[2] / "data" / "boot"


def lines(name: str) -> list[Line]:
    """The lines of a recorded log, through the node agent's own splitting."""
    text = (FOLDER / name).read_bytes().decode()
    rows = AGENT.stamped(text)
    return [Line(AGENT.unix_s(stamp), piece) for stamp, content in rows for piece in AGENT.clean([content])]


def said(*texts: str, at: float = 100.0) -> list[Line]:
    """One line a second from `at` on."""
    return [Line(at + number, text) for number, text in enumerate(texts)]
