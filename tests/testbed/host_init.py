"""Process 1 of a testbed host: lays out the host's own view of the files, says "ready", then reaps orphans for ever.

Started inside new mount, UTS, IPC, PID and network namespaces with one argument, a JSON object:
    root    folder of this host's private files (home, tmp, run, docker, etc/...)
    name    host name
    shm     size of /dev/shm, in mount(8)'s words
    mounts  paths that the binds over /root, /tmp and /run would hide, to be kept at the same place

A private /dev/shm and IPC namespace are not decoration: with the machine's own, vLLM takes two hosts for one node and
waits for ever.
"""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

# path that every host has for itself -> its place below the host's folder
PRIVATE = {
    "/root": "home",
    "/tmp": "tmp",
    "/run": "run",
    "/var/lib/docker": "docker",
    "/etc/docker": "etc/docker",
    "/etc/hosts": "etc/hosts",
    "/etc/hostname": "etc/hostname",
}
CGROUP = "/sys/fs/cgroup"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def like(source: Path, target: Path) -> None:
    """Make `target` exist as the same kind of thing as `source`, so that it can be mounted on."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def lay_out(root: Path, shm: str, kept: list[str]) -> None:
    """Every mount of the host. An open handle keeps a path reachable while another mount covers it."""
    handles = {path: os.open(path, os.O_PATH) for path in kept}
    mount("--rbind", CGROUP, str(root / "cgroup"))
    mount("-t", "sysfs", "sysfs", "/sys")  # a new one shows the network interfaces of this namespace only
    mount("--rbind", str(root / "cgroup"), CGROUP)
    mount("-t", "proc", "proc", "/proc")
    for path, below in PRIVATE.items():
        like(root / below, Path(path))
        mount("--bind", str(root / below), path)
    mount("-t", "tmpfs", "-o", f"size={shm},mode=1777", "tmpfs", "/dev/shm")
    stand_in_for_infiniband()
    for path, handle in handles.items():
        source = f"/proc/{os.getpid()}/fd/{handle}"
        like(Path(source), Path(path))
        mount("--no-canonicalize", "--rbind", source, path)  # the handle, not the path that it had
        os.close(handle)


def reap_for_ever() -> None:
    """Wait for every orphan. SIGCHLD is blocked, so that one which comes between the two calls stays pending."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])


def stand_in_for_infiniband() -> None:
    """The launcher's docker flags name /dev/infiniband: a folder of this host's own, with one device that is as good as null."""
    os.makedirs("/dev/infiniband", exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", "/dev/infiniband")
    os.mknod("/dev/infiniband/uverbs0", 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def main() -> None:
    spec = json.loads(sys.argv[1])
    os.chdir("/")
    lay_out(Path(spec["root"]), spec["shm"], spec["mounts"])
    socket.sethostname(spec["name"])
    print("ready", flush=True)
    reap_for_ever()


if __name__ == "__main__":
    main()
