"""The lab environment: how it is made, what a failure leaves, and how a module runs in it. The real one is used by nox -s lab."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import lab_env

PROGRAM = """
import os, signal, sys, time
def stop(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, stop)
print("threads", os.environ["OMP_NUM_THREADS"], "words", *sys.argv[1:], flush=True)
if "wait" in sys.argv:
    time.sleep(30)
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5)
"""
CALLER = "import sys; from cli import lab_env; sys.exit(lab_env.run_in_lab('program', sys.argv[1:]))"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lab_env.folder()


@pytest.fixture
def finished(home: Path) -> Path:
    """A finished environment whose Python is this one, so that a module really runs."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)
    (home / "finished").write_text("")
    return home


def steps_that(monkeypatch: pytest.MonkeyPatch, fail_at: str | None = None, hold_s: float = 0) -> list[str]:
    """Replace pip and venv (the network and minutes) by a recorder that makes the folder; it fails or takes time where told."""
    seen: list[str] = []

    def run(argv: Sequence[str], what: str) -> None:
        seen.append(what)
        if "venv" in argv:
            Path(argv[-1]).mkdir(parents=True)
            (Path(argv[-1]) / "part").write_text("x")
        time.sleep(hold_s)
        if fail_at and fail_at in what:
            raise lab_env.LabError("no space")

    monkeypatch.setattr(lab_env, "_run", run)
    return seen


def test_made_once_with_one_line_and_unfinished_one_removed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = steps_that(monkeypatch), list[str]()
    home.mkdir(parents=True)
    (home / "left-over").write_text("from a making that was killed")
    assert lab_env.ensure(said.append) == home / "bin" / "python"
    assert lab_env.ensure(said.append) == home / "bin" / "python"
    assert seen == ["making a virtual environment", "installing torch", "installing the locked packages"]
    assert len(said) == 1
    assert "torch==2.13.0" in said[0]
    assert "1.3 GB" in said[0]
    assert sorted(path.name for path in home.iterdir()) == ["finished", "part"]


@pytest.mark.parametrize("step", ["virtual", "torch", "locked"])
def test_a_failure_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    steps_that(monkeypatch, fail_at=step)
    with pytest.raises(lab_env.LabError, match="no space"):
        lab_env.ensure(lambda line: None)
    assert not home.exists()


def test_two_at_once_make_it_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = steps_that(monkeypatch, hold_s=0.15), list[str]()
    both = [threading.Thread(target=lab_env.ensure, args=(said.append,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(seen) == 3
    assert f"another process is making {home}; waiting for it" in said


def test_a_step_that_fails_says_what_ran() -> None:
    with pytest.raises(lab_env.LabError) as caught:
        lab_env._run([sys.executable, "-c", "print('first'); print('no such index'); raise SystemExit(3)"], "installing torch")
    text = str(caught.value)
    assert text.startswith(f"installing torch failed (exit 3); ran: {sys.executable} -c ")
    assert "no such index\ntry: check the network" in text


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(lab_env.LabError, match="XDG_CACHE_HOME"):
        lab_env.ensure(lambda line: None)


def test_the_recipe_decides_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = lab_env.folder()
    assert before.parent == tmp_path / "spark-lab"
    lock = tmp_path / "lock.txt"
    lock.write_text("numpy==1\n")
    monkeypatch.setattr(lab_env, "LOCK", lock)
    assert lab_env.folder() != before


def test_the_locked_set_has_no_torch() -> None:
    names = {line.partition("==")[0] for line in lab_env.LOCK.read_text().splitlines() if "==" in line}
    assert {"transformers", "safetensors", "gguf", "optuna", "numpy", "pytest"} <= names
    assert "torch" not in names


def called(finished: Path, *args: str) -> "subprocess.Popen[str]":
    """A process that calls run_in_lab("program", args) with this repository as its root, and `program` importable."""
    (finished.parent / "program.py").write_text(PROGRAM)
    patched = CALLER.replace("sys.exit(", f"from pathlib import Path; lab_env.ROOT = Path({str(finished.parent)!r}); sys.exit(")
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    argv = [sys.executable, "-c", patched, *args]
    return subprocess.Popen(argv, env=env, cwd=lab_env.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_exit_code_words_and_one_thread(finished: Path) -> None:
    out, _ = (process := called(finished, "a b", "$c")).communicate(timeout=30)
    assert (process.returncode, out) == (5, "threads 1 words a b $c\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_caller_alone_reaches_the_module(finished: Path, number: signal.Signals) -> None:
    process = called(finished, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "threads 1 words wait\n"
    begin = time.monotonic()
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, f"got {number.name}\n")
    assert time.monotonic() - begin < 5


def test_a_killed_module_is_an_error(finished: Path) -> None:
    _, err = (process := called(finished, "die")).communicate(timeout=30)
    assert process.returncode == 1
    assert "LabError: program was ended by SIGKILL; was memory short?" in err


def test_the_command_runs_a_module_or_names_the_python(finished: Path) -> None:
    """What `nox -s lab` calls."""
    command = [sys.executable, "-m", "cli.lab_env"]
    done = subprocess.run(
        [*command, "json.tool", "--compact"], cwd=lab_env.ROOT, input="[1, 2]", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "[1,2]\n")
    named = subprocess.run(command, cwd=lab_env.ROOT, capture_output=True, text=True, timeout=60)
    assert (named.returncode, named.stdout) == (0, f"{finished / 'bin' / 'python'}\n")
