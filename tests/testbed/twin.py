"""The kit `twin` as a user drives it: `python -m invoke` in processes of their own, and looks at what is left on the hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed import image, model, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import wait_until

ROOT = Path(__file__).resolve().parents[2]
PORT, MASTER_PORT = 18888, 29521  # kits/twin.toml and the default
NAMES = ("spark-lab-head", "spark-lab-worker")
LOCK = "/tmp/spark-lab.lock"  # the hosts have no /run/lock
STATES = "/root/.local/state/spark-lab"  # of all kits, on each host
STATE = f"{STATES}/twin"  # records and logs
VENV = vllm_env.CACHE / "vllm-0.32"
CODE = ("cluster", "bench", "cli", "ablit", "kits", "overlay", "requirements", "tasks.py", "pyproject.toml")
# Seconds of wall time from the command to its end. Two shared cores: about double what was measured.
AT_ONCE_S = 12.0  # refused by the first look at the nodes
UNREACHABLE_S = 25.0  # the connection attempt may take 8 s, and is made for lock and unlock
TAKEN_BACK_S = 60.0  # containers had been started and were stopped again


@dataclass(frozen=True)
class Done:
    """A finished `invoke`: exit code, both streams, seconds on the wall."""

    code: int
    out: str
    err: str
    wall_s: float


@dataclass(frozen=True)
class User:
    """A person at the head: the settings as variables, a state folder of their own, and the checkout in which they work."""

    env: Mapping[str, str]
    folder: Path = ROOT

    @classmethod
    def at(cls, folder: Path) -> User:
        """Nothing of this machine's own settings gets in."""
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
        return cls({**kept, "XDG_STATE_HOME": str(folder), "KIT": "twin"})

    @classmethod
    def with_kit(cls, folder: Path, kit: str, text: str, **settings: str) -> User:
        """Somebody with a copy of the code that has one more kit, as a user would add it. What they measure has this checkout's commit."""
        code = folder / "code"
        code.mkdir(parents=True)
        for path in (ROOT / name for name in CODE):
            if path.is_dir():
                shutil.copytree(path, code / path.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(path, code)
        (code / f"kits/{kit}.toml").write_text(text)
        git = {"GIT_DIR": str(ROOT / ".git"), "GIT_WORK_TREE": str(ROOT)}
        return cls({**cls.at(folder / "state").env, **git, "KIT": kit, **settings}, code)

    def begin(self, *words: str, **settings: str) -> subprocess.Popen[str]:
        """Start `invoke WORDS` and do not wait. It leads its own process group, as with a terminal's Ctrl-C."""
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *words],
            cwd=self.folder,
            env={**self.env, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def invoke(self, *words: str, **settings: str) -> Done:
        begin = time.monotonic()
        with self.begin(*words, **settings) as process:
            return finish(process, begin)


def finish(process: subprocess.Popen[str], begin: float) -> Done:
    """Wait for an `invoke` that was started at `begin`; one that does not end is killed, and TimeoutExpired raised."""
    try:
        out, err = process.communicate(timeout=300)
    except BaseException:
        process.kill()
        raise
    return Done(process.returncode, out, err, time.monotonic() - begin)


def prepare(bed: Testbed) -> None:
    """All that a launch needs: vLLM (minutes, once), the tiny model, hosts that are up and have the image."""
    vllm_env.ensure()
    if not (vllm_env.CACHE / "tiny-qwen3-moe/model.safetensors").exists():
        model.make()
    bed.up()
    for host in bed.hosts:
        image.load(host)


# --- what `up` says when it fails ---


def refused(done: Done, *words: str, within_s: float, code: int = 1) -> None:
    """One message, with these words in it, what to try, no traceback; in time."""
    print(f"{done.wall_s:.1f} s (limit {within_s:g})\n{done.err}")
    assert done.code == code, done.err
    assert done.wall_s < within_s, f"{done.wall_s:.1f} s"
    assert len(re.findall("^error: ", done.err, re.MULTILINE)) == 1, done.err
    assert "Traceback" not in done.err, done.err
    message = done.err.partition("error: ")[2]
    missing = [word for word in (*words, "  try: ") if word not in message]
    assert missing == [], f"{missing} not in\n{message}"
    assert done.out == "", done.out


def clean(hosts: Sequence[Host]) -> None:
    left = remains(hosts)
    assert left == [], left


# --- looks at the hosts ---


def containers(host: Host) -> list[str]:
    """Names of all containers, running or not."""
    return host.run("docker", "ps", "--all", "--format", "{{.Names}}").split()


def processes(host: Host, word: str = "vllm") -> list[str]:
    """Command lines that hold the word, of every user and container on the host."""
    return [line for line in host.run("ps", "-eo", "args=").splitlines() if word in line.lower()]


def listening(host: Host) -> set[int]:
    """TCP ports on which anything listens."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in host.run("cat", f"/proc/net/{table}").splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def lock(host: Host) -> dict[str, Any] | None:
    """The launch lock that is held on the host; None when it is free."""
    file = host.path(LOCK)
    text = file.read_text() if file.exists() else ""
    return json.loads(text) if text else None


def logs(host: Host, name: str) -> list[Path]:
    """The logs of rank `name` that were saved on the host, oldest first (builds keep theirs in the same folder)."""
    return sorted(host.path(f"{STATE}/logs").glob(f"*-{name}.log"))


def remains(hosts: Sequence[Host]) -> list[str]:
    """What a launch left on the hosts, one phrase each; empty when they are clean."""
    return [f"{host.name}: {what}" for host in hosts for what in _remains(host)]


def _remains(host: Host) -> Iterator[str]:
    yield from (f"container {name}" for name in containers(host))
    yield from (f"process {line}" for line in processes(host))
    yield from (f"listener on {port}" for port in sorted(listening(host) & {PORT, MASTER_PORT}))
    yield from (f"/dev/shm/{name}" for name in host.run("ls", "/dev/shm").split() if name.startswith(("psm_", "sem.mp-")))
    held = lock(host)
    if held:
        yield f"lock held by {held['owner']}"


def clear(hosts: Sequence[Host]) -> None:
    """Take away what a failed test left, so that the next one starts from nothing."""
    for host in hosts:
        for name in containers(host):
            host.run("docker", "rm", "--force", name)
        for record in host.path(STATES).glob("*/spark-lab-*.json"):
            kill(host, "--sid", str(json.loads(record.read_text())["pid"]))
            record.unlink()
        host.path(LOCK).unlink(missing_ok=True)
        host.attempt("sh", "-c", "rm -f /dev/shm/psm_* /dev/shm/sem.mp-*")
    wait_until(lambda: not any(processes(host) for host in hosts), 20)


def kill(host: Host, *chosen: str) -> None:
    """End the host's processes that `ps` chooses, each by its pid."""
    pids = host.attempt("ps", "-o", "pid=", *chosen).stdout.split()
    if pids:
        host.attempt("kill", "-KILL", *pids)


@contextlib.contextmanager
def listener(host: Host, port: int) -> Iterator[None]:
    """Somebody else's program listens on the port. It ends with its stdin, so that no pid is needed to stop it."""
    code = f"import socket, sys; held = socket.create_server(('', {port})); print('up', flush=True); sys.stdin.read()"
    init = host.process("init")
    assert init is not None
    words = ["nsenter", f"--target={init.pid}", "--all", "--", "/usr/bin/python3", "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        try:
            yield
        finally:
            process.communicate("")
