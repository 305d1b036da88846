"""The run directory: its place, its lock, and how many logs stay."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import state
from cluster.errors import LaunchError
from tests.cluster.support import ROOT, default_interrupt

HOLD = "import time; from cluster import state\nwith state.lock('k'): print('held', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of kit k."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=default_interrupt
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def locked(kit: str) -> bool:
    """Whether the lock can be had right now, by trying."""
    try:
        with state.lock(kit):
            return False
    except LaunchError:
        return True


def test_second_holder_is_refused_by_pid(holder: subprocess.Popen[str]) -> None:
    with pytest.raises(LaunchError, match=rf"^another command is working on kit k \(pid {holder.pid}\)\ntry: "), state.lock("k"):
        pass
    assert LaunchError.exit_code == 1


def test_other_kit_is_free(holder: subprocess.Popen[str]) -> None:
    assert (locked("k"), locked("other")) == (True, False)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_lock_ends_with_its_holder(holder: subprocess.Popen[str], sig: signal.Signals) -> None:
    holder.send_signal(sig)
    holder.wait(10)
    assert not locked("k")


def test_lock_is_freed_after_the_block_and_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), state.lock("k"):
        raise ZeroDivisionError
    assert not locked("k")


def test_lock_is_not_inherited_by_what_is_started_under_it() -> None:
    with state.lock("k"):
        child = subprocess.Popen(["sleep", "600"])
    try:
        assert not locked("k")
    finally:
        child.kill()
        child.wait()


def test_run_dir_honours_xdg_state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state.run_dir("k") == tmp_path / "spark-lab" / "k"
    for unset in ("", None):
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.setenv("XDG_STATE_HOME", "") if unset == "" else monkeypatch.delenv("XDG_STATE_HOME")
        assert state.run_dir("k") == Path("/home/me/.local/state/spark-lab/k")


def test_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match=rf"^cannot use the state folder {tmp_path}/file/spark-lab/k: "), state.lock("k"):
        pass
