"""The lab environment: torch and transformers for the KLD panel and the ablation lab, beside .venv and never inside it.

    python -m cli.lab_env                  # make it if it is not there, print its Python
    python -m cli.lab_env MODULE ARGS...   # run a module in it

It lies in the user's cache, named by its recipe: torch (in a step of its own, so that a CPU build is taken where pip's index offers
one), then requirements/lab.txt by hash. Made at first use; a failed or interrupted making leaves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lab.txt"
TORCH = "torch==2.13.0"
_STAMP = "finished"
_PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-input")
# Threads: on contended cores two OpenMP threads burn twice the CPU of one, spinning at barriers.
DEFAULTS = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SENT_BY_KILL = (0, -6)  # si_code SI_USER and SI_TKILL; a terminal's Ctrl-C is SI_KERNEL and reaches the child by itself


class LabError(Exception):
    """The lab environment could not be made, or its process was killed."""

    exit_code = 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def recipe() -> str:
    """Changes with anything that decides what is installed."""
    words = f"{TORCH} {sys.version_info[:2]} {platform.system()} {platform.machine()} "
    return hashlib.sha256(words.encode() + LOCK.read_bytes()).hexdigest()[:12]


def folder() -> Path:
    """Where the environment of this recipe lies: $XDG_CACHE_HOME/spark-lab/lab-<recipe>."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab" / f"lab-{recipe()}"


def ensure(say: Callable[[str], None] = _say) -> Path:
    """The environment's Python; makes the environment first unless a finished one is there. Raises LabError."""
    home = folder()
    python = home / "bin" / "python"
    if (home / _STAMP).exists():
        return python
    try:
        with _only_one(home, say):
            if not (home / _STAMP).exists():
                _make(home, say)
    except OSError as error:
        raise LabError(
            f"cannot make the lab environment in {home}: {error}\ntry: free 4 GB, or name another folder in XDG_CACHE_HOME"
        ) from error
    return python


@contextlib.contextmanager
def _only_one(home: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this environment; a second process waits here."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.with_name(home.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {home}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(home: Path, say: Callable[[str], None]) -> None:
    say(f"making the lab environment in {home} (once: {TORCH}, transformers; 2 to 5 minutes and 1.3 GB with a CPU build of torch)")
    shutil.rmtree(home, ignore_errors=True)  # an unfinished one
    pip = [*_pip(), "--python", str(home / "bin" / "python"), *_PIP]
    try:
        _run([sys.executable, "-m", "venv", "--without-pip", str(home)], "making a virtual environment")
        _run([*pip, TORCH], "installing torch")
        _run([*pip, "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)], "installing the locked packages")
        (home / _STAMP).write_text(f"{TORCH}\n")
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise


def _pip() -> list[str]:
    """A pip that runs: this environment's, else (venv made by the system's pip) the base interpreter's."""
    for python in (sys.executable, f"{sys.base_prefix}/bin/python3"):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [python, "-m", "pip"]
    raise LabError("no pip to make the lab environment with\ntry: sudo apt install python3-venv, remove .venv, run ./lab again")


def _run(argv: Sequence[str], what: str) -> None:
    """Run one step quietly. Raises LabError with its last lines."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-5:])
        hint = "check the network, the proxy, pip's index settings and the free disk space, then run it again"
        raise LabError(f"{what} failed (exit {done.returncode}); ran: {' '.join(argv)}\n{tail}\ntry: {hint}")


def environment() -> dict[str, str]:
    """This process's environment with the repository and the overlay importable, and DEFAULTS where not set by the user."""
    return {**DEFAULTS, **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "overlay")])}


def run_in_lab(module: str, args: Sequence[str] = ()) -> int:
    """Run `python -m module args...` in the lab environment, made first if need be; the exit code.

    Standard streams are the caller's. SIGINT, SIGTERM and SIGHUP reach the module, which decides how to end. Raises LabError when
    the environment cannot be made or the process is killed by a signal.
    """
    argv = [str(ensure()), "-m", module, *args]
    sys.stdout.flush()
    child = subprocess.Popen(argv, env=environment())
    try:
        code = _waited(child)
    except BaseException:
        child.kill()
        child.wait()
        raise
    if code < 0:
        why = "; was memory short?" if code == -signal.SIGKILL else ""
        raise LabError(f"{module} was ended by {signal.Signals(-code).name}{why}")
    return code


def _waited(child: subprocess.Popen[bytes]) -> int:
    """The child's exit code. Signals that another process sent to this one alone are handed on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        while (code := child.poll()) is None:
            got = signal.sigtimedwait(_FORWARDED, 0.1)
            if got and got.si_code in _SENT_BY_KILL:
                child.send_signal(got.si_signo)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main(words: Sequence[str]) -> int:
    try:
        if words:
            return run_in_lab(words[0], words[1:])
        print(ensure())
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
