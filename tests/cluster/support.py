"""Helpers of these tests: a node agent with its own run directory, and looks at real processes and ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.transport import LocalTransport, Transport, ask_agent

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Node:
    """The node agent on this machine, asked through the real transport; `folder` holds record and log."""

    folder: Path
    transport: Transport = field(default_factory=LocalTransport)

    @property
    def record_path(self) -> Path:
        return self.folder / "run" / "rank0.json"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "boot.log"

    def ask(self, action: str, **request: Any) -> dict[str, Any]:
        common = {"action": action, "name": "rank0", "run_dir": str(self.folder / "run")}
        return ask_agent(self.transport, {**common, **request})

    def start(self, *argv: str, env: Mapping[str, str] | None = None, **record: Any) -> dict[str, Any]:
        request = {"argv": argv, "env": dict(env or {}), "cwd": str(self.folder), "log": str(self.log), "record": record}
        return self.ask("start", **request)

    def python(self, code: str, *words: str, **options: Any) -> dict[str, Any]:
        return self.start(sys.executable, "-c", code, *words, **options)

    def probe(self, port: int | None = None) -> dict[str, Any]:
        return self.ask("probe", port=port)

    def stop(self, grace_s: float = 5) -> dict[str, Any]:
        return self.ask("stop", grace_s=grace_s)

    def edit_record(self, **changes: Any) -> None:
        self.record_path.write_text(json.dumps({**json.loads(self.record_path.read_text()), **changes}))

    def says(self, text: str) -> bool:
        return self.log.exists() and text in self.log.read_text()

    def ended(self) -> dict[str, Any]:
        """What a probe sees once nothing of the session lives."""
        eventually(lambda: not self.probe()["pids"])
        return self.probe()


def eventually(condition: Callable[[], object], within_s: float = 10) -> None:
    """Wait until `condition` is true; fail when it is not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether `pid` is a process that is not a zombie."""
    return stat(pid)[:1] not in ([], ["Z"])


def stat(pid: int) -> Sequence[str]:
    """The fields of /proc/PID/stat from the state on; empty when there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def session(sid: int) -> list[int]:
    """The living processes of session `sid`."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if lives(pid) and stat(pid)[3:4] == [str(sid)]]


def command_lines() -> str:
    """The command lines of every process of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        port: int = sock.getsockname()[1]
        return port


def kill_session(sid: int) -> None:
    """End what a failed test may have left."""
    for pid in session(sid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
