"""How a task ends: an expected failure, Ctrl-C, a closed pipe, a bug. Each as a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.support import ROOT, default_interrupt

TASKS = """
import sys, time
sys.path.insert(0, {root!r})
import cli
cli.adapt_invoke()

class Refused(Exception):
    exit_code = 3

@cli.task
def good(ctx):
    print("done")

@cli.task
def code(ctx):
    return 4

@cli.task
def refused(ctx):
    raise Refused("first\\nsecond")

@cli.task
def bug(ctx):
    raise KeyError("oops")

@cli.task
def wait(ctx):
    print("waiting", flush=True)
    time.sleep(60)

@cli.task
def much(ctx):
    for number in range(100000):
        print(number)
"""

ENDINGS = {
    "good": (0, "done\n", ""),
    "code": (4, "", ""),
    "refused": (3, "", "error: first\n  second\n"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS.format(root=str(ROOT)))
    return tmp_path


def invoke(folder: Path, task: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "invoke", task], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=default_interrupt,
    )  # fmt: skip


@pytest.mark.parametrize("task", ENDINGS)
def test_ending(folder: Path, task: str) -> None:
    with invoke(folder, task) as process:
        out, err = process.communicate()
    assert (process.returncode, out, err) == ENDINGS[task]


def test_bug_shows_its_traceback(folder: Path) -> None:
    with invoke(folder, "bug") as process:
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("KeyError: 'oops'\n")


def test_interrupt_is_one_line(folder: Path) -> None:
    with invoke(folder, "wait") as process:
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (1, "interrupted\n")


def test_closed_pipe_is_quiet(folder: Path) -> None:
    with invoke(folder, "much") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
