"""How a command reaches a node. One Outcome per command; a transport never raises for a command that failed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cluster.errors import LaunchError

_AGENT = Path(__file__).with_name("agent.py")


@dataclass(frozen=True)
class Outcome:
    """What one command did on one node. `code` is None when it ran past its time limit."""

    node: str
    argv: tuple[str, ...]
    code: int | None
    stdout: str
    stderr: str
    seconds: float

    def error(self, what: str, hint: str = "") -> LaunchError:
        """This outcome as a failure message: `what`, the command and its last lines."""
        state = "timed out" if self.code is None else f"exit {self.code}"
        lines = (self.stderr or self.stdout).strip().splitlines()[-8:]
        return LaunchError(f"{what} ({state})", node=self.node, ran=" ".join(self.argv), tail=lines, hint=hint)


class Transport(Protocol):
    """Runs one command on one node: argv without a shell, text on stdin, a wall-clock limit in seconds."""

    @property
    def node(self) -> str: ...

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome: ...


@dataclass(frozen=True)
class LocalTransport:
    """Commands on this machine."""

    node: str = "local"

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        begin = time.monotonic()
        try:
            done = subprocess.run(argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s)
            code, out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            code, out, err = None, _text(late.stdout), _text(late.stderr)
        except OSError as error:
            code, out, err = 127, "", str(error)
        return Outcome(self.node, tuple(argv), code, out, err, time.monotonic() - begin)


def _text(data: Any) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def ask_agent(transport: Transport, request: Mapping[str, Any], *, python: str = sys.executable, timeout_s: float = 30) -> dict[str, Any]:
    """Run the node agent on `transport`'s node with one request and return its answer. Raises LaunchError."""
    program = f"{_AGENT.read_text()}\nraise SystemExit(main(json.loads({json.dumps(json.dumps(request))})))\n"
    outcome = transport.run([python, "-"], stdin=program, timeout_s=timeout_s)
    if outcome.code != 0:
        raise outcome.error(f"the node agent could not {request['action']} {request['name']}")
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer
