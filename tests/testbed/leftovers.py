"""Take a testbed apart, and prove that nothing of it is left."""

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.testbed.host import BRIDGE, CGROUP, Host
from tests.testbed.shell import attempt, failure, run, wait_until

NETNS = Path("/run/netns")
NAMES = [f"sparkt{index}" for index in range(1, 5)]
VETHS = [f"sparkv{index}" for index in range(1, 5)]


def devices() -> list[str]:
    """Network devices and namespaces on this machine that bear a name of ours."""
    links = [link["ifname"] for link in json.loads(run(["ip", "-j", "link"], "list the network devices"))]
    return [*(name for name in links if name in [BRIDGE, *VETHS]), *(name for name in NAMES if (NETNS / name).exists())]


def by_hand(names: Sequence[str]) -> list[str]:
    """The commands that remove these devices."""
    return [f"ip netns del {name}" if name in NAMES else f"ip link del {name}" for name in names]


def remove(hosts: Sequence[Host]) -> list[str]:
    """Stop every host (its process 1, and with it all in its PID namespace), then remove devices and cgroups by name.

    Returns one line for each thing removed. Safe on a half-made testbed. Raises TestbedError, with the network left in
    place, if a process that the testbed did not start (a shell of `ip netns exec`, say) is in one of its namespaces.
    """
    removed = [line for host in hosts for line in _stop(host)]
    wait_until(lambda: not strangers(), 2)
    _refuse(strangers())
    for name in devices():
        command = by_hand([name])[0]
        attempt(command.split())  # whether it worked is seen by `check`; a veth goes with its namespace
        removed.append(command)
    _remove_cgroups()
    return removed


def drop(host: Host) -> None:
    """Stop one host and remove its cable and files; the others stay. Raises TestbedError if anything but its cgroup is left."""
    _stop(host)
    attempt(by_hand([host.netns])[0].split())  # its end of the cable goes with the namespace, the bridge's with that
    wait_until(lambda: not _of(host), 5)
    _refuse(_of(host))
    shutil.rmtree(host.root, ignore_errors=True)
    _refuse([str(host.root)] if host.root.exists() else [])


def _of(host: Host) -> list[str]:
    return [name for name in devices() if name in (host.netns, host.veth)]


def _stop(host: Host) -> list[str]:
    lines = [f"stopped {what} of {host.name}" for what in ("dockerd", "sshd", "init") if host.alive(what)]
    for what in ("init", "sshd", "dockerd"):
        if (host.root / "pids").exists():
            host.stop(what)
    return lines


def cgroups() -> list[Path]:
    """Every cgroup of ours, innermost first, in cgroup v1 and v2 layouts."""
    tops = [*Path("/sys/fs/cgroup").glob(CGROUP), *Path("/sys/fs/cgroup").glob(f"*/{CGROUP}")]
    found = [Path(folder) for top in tops for folder, _, _ in os.walk(top)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _remove_cgroups() -> None:
    """An emptied cgroup may stay busy for a moment after its last process."""

    def gone() -> bool:
        for group in cgroups():
            with contextlib.suppress(OSError):
                group.rmdir()
        return not cgroups()

    wait_until(gone, 5)


def strangers() -> list[str]:
    """Processes in a network namespace of ours, in words."""
    spaces = {f"net:[{(NETNS / name).stat().st_ino}]" for name in NAMES if (NETNS / name).exists()}
    return [_describe(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit() and _netns(folder) in spaces]


def _netns(process: Path) -> str:
    try:
        return os.readlink(process / "ns/net")
    except OSError:
        return ""


def _describe(process: Path) -> str:
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"process {process.name}: {words}"
    return f"process {process.name}"


def _mounts(state: Path) -> list[str]:
    """Mounts of this mount namespace on or from the state folder, or of our network namespaces."""
    words = [str(state / "spark"), *(str(NETNS / name) for name in NAMES)]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [f"mount: {line}" for line in lines if any(word in line for word in words)]


def left(state: Path) -> list[str]:
    """All that is there of a testbed: devices, namespaces, processes in them, mounts, cgroups. Empty if really down."""
    return [*devices(), *strangers(), *_mounts(state), *(f"cgroup {path}" for path in cgroups())]


def check(state: Path, hosts: Sequence[Host]) -> None:
    """Raise TestbedError if anything is left; the state folder is kept then, so that `down` can be called again."""
    alive = [f"{what} of {host.name}" for host in hosts for what in ("init", "sshd", "dockerd") if host.alive(what)]
    _refuse(left(state) + alive)


def _refuse(remains: Sequence[str]) -> None:
    if remains:
        hint = "end the processes named (a shell inside a host?), then python -m tests.testbed.hosts down"
        raise failure("take the testbed down", why=f"{len(remains)} things are left", output="\n".join(remains), hint=hint)


def keep_logs(state: Path, hosts: Sequence[Host]) -> None:
    """Move the logs of this run to `state`/logs; those of the run before go."""
    shutil.rmtree(state / "logs", ignore_errors=True)
    for host in hosts:
        if (host.root / "log").exists():
            shutil.copytree(host.root / "log", state / "logs" / host.name)
