"""Run commands and say plainly what failed; remember a started process by pid and start time, and stop only that."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"  # Debian's docker client before any other
ENV = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
TAIL_LINES = 15


class TestbedError(RuntimeError):
    """Something of the testbed failed; the text says what, where, what ran, its last lines, and what to try."""

    __test__ = False


def failure(doing: str, *, ran: Sequence[str] = (), why: str = "", output: str = "", hint: str = "") -> TestbedError:
    """The one place that words an error; empty parts are left out."""
    lines = [f"could not {doing}" + (f": {why}" if why else "")]
    if ran:
        lines.append(f"  ran: {shlex.join(ran)}")
    tail = output.rstrip().splitlines()[-TAIL_LINES:]
    if tail:
        lines += ["  last lines:", *(f"    {line}" for line in tail)]
    if hint:
        lines.append(f"  try: {hint}")
    return TestbedError("\n".join(lines))


@dataclass(frozen=True)
class Result:
    """What a finished command left: exit status, both streams, seconds on the wall."""

    status: int
    stdout: str
    stderr: str
    wall_s: float


@dataclass(frozen=True)
class How:
    """How to run a command: `env` is its whole environment, `stdin` a file or text, `hint` what to try if it fails."""

    timeout_s: float = 60.0
    env: Mapping[str, str] | None = None
    stdin: Path | str | None = None
    hint: str = ""


PLAIN = How()


def attempt(argv: Sequence[str], how: How = PLAIN) -> Result:
    """Run `argv` and return its Result, whatever its status; past `timeout_s` its group is killed (status 124)."""
    begin = time.monotonic()
    text = how.stdin if isinstance(how.stdin, str) else None
    with contextlib.ExitStack() as stack:
        feed = stack.enter_context(how.stdin.open("rb")) if isinstance(how.stdin, Path) else subprocess.DEVNULL
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if text is not None else feed,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=ENV if how.env is None else dict(how.env),
            start_new_session=True,
        )
        status, out, err = _finish(process, text, how.timeout_s)
    return Result(status, out, err, time.monotonic() - begin)


def _finish(process: subprocess.Popen[str], text: str | None, timeout_s: float) -> tuple[int, str, str]:
    """Wait for a process that leads its own group. The group is killed on a time-out or an interrupt."""
    try:
        out, err = process.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return 124, out, f"{err}\nno end within {timeout_s:g} s: killed"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, out, err


def run(argv: Sequence[str], doing: str, how: How = PLAIN) -> str:
    """Run `argv` and return its stdout. Raises TestbedError ("could not {doing}") on a status other than 0."""
    try:
        result = attempt(argv, how)
    except FileNotFoundError as error:
        raise failure(doing, ran=argv, why=str(error), hint=how.hint) from error
    if result.status != 0:
        why = f"exit status {result.status} after {result.wall_s:.1f} s"
        raise failure(doing, ran=argv, why=why, output=result.stdout + result.stderr, hint=how.hint)
    return result.stdout


def wait_until(ready: Callable[[], bool], timeout_s: float, every_s: float = 0.03) -> bool:
    """Poll `ready` until it is true (True) or `timeout_s` has passed (False)."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot (field 22 of its stat); None if gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name in brackets may hold spaces
    return None if fields[0] in "ZX" else int(fields[19])


@dataclass(frozen=True)
class Process:
    """A process that the testbed started. A pid alone is no identity, so its start time and the boot go with it."""

    pid: int
    ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """The process that has this pid now; None if there is none."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    @classmethod
    def load(cls, path: Path) -> "Process | None":
        """Read a record made by `save`; None if there is no such file."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n")

    def alive(self) -> bool:
        """True only for the very process that was recorded, not for a later one with the same pid."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.ticks

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process is gone. The pidfd closes the gap between check and signal."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def stop(self, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL after `grace_s`; False if it still lives 10 s later."""
        if grace_s > 0:
            self.send(signal.SIGTERM)
            if wait_until(lambda: not self.alive(), grace_s):
                return True
        self.send(signal.SIGKILL)
        return wait_until(lambda: not self.alive(), 10)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def children(pid: int) -> list[int]:
    """Pids of the children of a process with one thread; empty if it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


# Starts "$@" in the background, in a session of its own, with its output at the end of the file $1; prints its pid.
BACKGROUND = 'log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'


def in_background(log: Path, argv: Sequence[str]) -> list[str]:
    """A command that starts `argv` in the background and prints its pid (as seen in its own PID namespace)."""
    return ["sh", "-c", BACKGROUND, "sh", str(log), *argv]


def inner_pid(pid: int) -> int | None:
    """The pid that a process has in its own PID namespace; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(status.partition("NSpid:")[2].partition("\n")[0].split()[-1])
