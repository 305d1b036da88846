"""Helpers of these tests: a node agent with its own run directory, and looks at real processes and ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.agent_client import ask_agent
from cluster.settings import NAMES
from cluster.transport import LocalTransport, Transport

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Node:
    """The node agent on this machine, asked through the real transport; `folder` holds record and log."""

    folder: Path
    transport: Transport = field(default_factory=LocalTransport)
    sessions: list[int] = field(default_factory=list)

    @property
    def record_path(self) -> Path:
        return self.folder / "run" / "rank0.json"

    @property
    def log(self) -> Path:
        """The newest log; a path that does not exist before the first start."""
        return max((self.folder / "run" / "logs").glob("*.log"), default=self.folder / "no.log")

    def ask(self, action: str, **request: Any) -> dict[str, Any]:
        common = {"action": action, "name": "rank0", "run_dir": str(self.folder / "run")}
        return ask_agent(self.transport, {**common, **request})

    def start(self, *argv: str, env: Mapping[str, str] | None = None, **record: Any) -> dict[str, Any]:
        record = {"boot": "b0", "port": None, "health_url": None, **record}
        request = {"argv": argv, "env": dict(env or {}), "cwd": str(self.folder), "folders": [], "record": record}
        answer = self.ask("start", **request)
        self.sessions.append(answer["record"]["pid"])
        return answer

    def python(self, code: str, *words: str, **options: Any) -> dict[str, Any]:
        return self.start(sys.executable, "-c", code, *words, **options)

    def probe(self, port: int | None = None) -> dict[str, Any]:
        return self.ask("probe", port=port)

    def stop(self, grace_s: float = 5) -> dict[str, Any]:
        return self.ask("stop", grace_s=grace_s)

    def clean_up(self) -> None:
        """End whatever was started here and still runs, without the agent's help."""
        for sid in self.sessions:
            kill_session(sid)

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


def kill_session(sid: int) -> None:
    """End what a failed test may have left."""
    for pid in session(sid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def default_interrupt() -> None:
    """For preexec_fn: let SIGINT end a child even when this test run was started in the background, ignoring it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started_pid(up: subprocess.Popen[str]) -> int:
    """Read what `up` says until it has started a process."""
    assert up.stderr
    line = next(line for line in up.stderr if line.startswith("started pid "))
    return int(line.split()[2].rstrip(","))


def clean_environ(**changes: str) -> dict[str, str]:
    """This process's environment with none of our settings but `changes`."""
    return {name: value for name, value in os.environ.items() if name not in NAMES} | changes


@dataclass
class Lab:
    """`python -m invoke` as a user calls it, with a state folder and a port of its own."""

    state: Path
    port: int

    def environ(self, **changes: str) -> dict[str, str]:
        # An empty key is "none needed", also where the checkout has a .env that sets one.
        fixed = {"XDG_STATE_HOME": str(self.state), "KIT": "local", "HOST": "127.0.0.1", "PORT": str(self.port), "VLLM_API_KEY": ""}
        return clean_environ(**{**fixed, "SPEC_METHOD": "ngram", "MAX_NUM_SEQS": "1", **changes})

    def run(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "invoke", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environ(**changes), capture_output=True, text=True, timeout=120)

    def begin(self, *words: str, **changes: str) -> subprocess.Popen[str]:
        """Like run, but do not wait; its own process group, as a terminal makes one."""
        command = [sys.executable, "-m", "invoke", *words]
        return subprocess.Popen(
            command, cwd=ROOT, env=self.environ(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, preexec_fn=default_interrupt,
        )  # fmt: skip

    @property
    def record(self) -> dict[str, Any]:
        """The run record of what `up` started."""
        record: dict[str, Any] = json.loads((self.state / "spark-lab" / "local" / "spark-lab-local.json").read_text())
        return record

    @property
    def engine(self) -> int:
        """The pid of the server behind the shell that leads its session."""
        (pid,) = set(session(self.record["pid"])) - {self.record["pid"]}
        return pid

    def get(self, path: str, key: str = "", body: Any = None) -> tuple[int, str]:
        """Status and text of one request to the server."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
