"""Progress as a person sees it: plain lines in a file, live lines on a real terminal."""

import os
import pty
import subprocess
import sys

import pytest

from cluster.boot import phases, show
from cluster.boot.phases import Phases
from cluster.boot.show import Progress
from tests.cluster.support import ROOT

LIVE = """
import time
from cluster.boot import show
from cluster.boot.phases import Phases
show._QUIET_S = 0
progress = show.Progress(print)
for second in (10, 20):
    progress.update({"head": Phases(0, "load", 0, second, 83), "worker": Phases(1, "join", 5)}, {"head": second, "worker": second})
    time.sleep(0.4)
progress.close()
print("ready")
"""


def test_line_with_time_to_go() -> None:
    assert show.line("head", Phases(0, "load", 100, 12, 83), 112) == "head: weights 12 of 83, 12 s, about 71 s to go"
    assert show.line("worker", phases.begin(1, 100), 103.4) == "worker: container, 3 s"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_plain_lines_at_changes_and_every_quarter_of_a_minute(clock: list[float]) -> None:
    said: list[str] = []
    progress = Progress(said.append)

    def at(seconds: float, head: str, worker: str) -> list[str]:
        clock[0] = 1000 + seconds
        said.clear()
        progress.update({"head": Phases(0, head, 0), "worker": Phases(1, worker, 0)}, {"head": seconds, "worker": seconds})
        return list(said)

    assert at(3, "process", "process") == []  # a start that is over soon needs no progress
    assert at(5, "process", "process") == ["  head: process and imports, 5 s\n  worker: process and imports, 5 s"]
    assert at(6, "process", "process") == []
    assert at(7, "process", "join") == ["  worker: ranks meet, 7 s"]
    assert at(21, "process", "join") == []
    assert at(22, "process", "join")[0] == "waiting for ready, 22 s so far"
    assert at(23, "process", "join") == []


def test_single_machine_tells_no_change(clock: list[float]) -> None:
    said: list[str] = []
    progress = Progress(said.append)
    for seconds in (5, 10, 14):
        clock[0] = 1000.0 + seconds
        progress.update({"local": Phases(0, "load", 0)}, {"local": seconds})
    assert said == []
    clock[0] = 1015
    progress.update({"local": Phases(0, "load", 0)}, {"local": 15})
    assert said == ["waiting for ready, 15 s so far", "  local: weights, 15 s"]


def test_live_lines_on_a_terminal() -> None:
    """One line per rank, rewritten in place and gone at the end."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", LIVE], cwd=ROOT, stderr=slave, stdout=slave, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(slave)
        shown = b""
        while chunk := _read(master):
            shown += chunk
    os.close(master)
    text = shown.decode()
    assert process.returncode == 0
    assert "head: weights 10 of 83, 10 s, about 73 s to go" in text
    assert "head: weights 20 of 83" in text
    assert "worker: ranks meet, 15 s" in text
    assert "\x1b[1A" in text  # the cursor goes back up
    assert text.rstrip().endswith("ready")
    assert "weights" not in text.rpartition("\x1b[2K")[2]  # and the lines are erased


def _read(master: int) -> bytes:
    try:
        return os.read(master, 4096)
    except OSError:
        return b""
