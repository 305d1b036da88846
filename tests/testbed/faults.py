"""Faults of one host, each a context manager that takes the fault back at its end, also when the body raises.

    with faults.link_down(host), faults.dockerd_stopped(other): ...

None of them delays packets: `netem` is missing from some kernels that the testbed must run on.
"""

import contextlib
import json
import signal
from collections.abc import Iterator

from tests.testbed.host import Host, ip, make_key
from tests.testbed.shell import failure, run


@contextlib.contextmanager
def sshd_stopped(host: Host) -> Iterator[None]:
    """New connections are refused at once; open ones live on."""
    host.stop("sshd")
    try:
        yield
    finally:
        host.start_sshd()


@contextlib.contextmanager
def dockerd_stopped(host: Host) -> Iterator[None]:
    """As `systemctl stop docker`: containers are stopped too, and those with a restart policy come back at the end."""
    host.stop("dockerd", grace_s=30)
    try:
        yield
    finally:
        host.start_dockerd()


@contextlib.contextmanager
def frozen(host: Host, what: str) -> Iterator[None]:
    """`sshd` or `dockerd` neither answers nor refuses."""
    process = host.process(what)
    if process is None:
        raise failure(f"freeze {what} of {host.name}", why="it does not run")
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


@contextlib.contextmanager
def link_down(host: Host) -> Iterator[None]:
    """The cable is out: the host's eth0 loses its carrier and keeps its address; nobody hears it any more."""
    ip("link", "set", host.veth, "down")
    try:
        yield
    finally:
        ip("link", "set", host.veth, "up")


@contextlib.contextmanager
def mtu(host: Host, size: int) -> Iterator[None]:
    """The host's eth0 has this MTU in bytes; the switch side keeps its own, as with one misconfigured host."""
    before = json.loads(ip("-j", "-n", host.netns, "link", "show", "eth0"))[0]["mtu"]
    ip("-n", host.netns, "link", "set", "eth0", "mtu", str(size))
    try:
        yield
    finally:
        ip("-n", host.netns, "link", "set", "eth0", "mtu", str(before))


@contextlib.contextmanager
def small_disk(host: Host, path: str, mib: int) -> Iterator[None]:
    """An empty file system of `mib` MiB lies over `path` (made if missing); what it holds at the end is lost."""
    host.run("mkdir", "-p", path)
    host.run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", path)
    try:
        yield
    finally:
        host.run("umount", "--lazy", path)


@contextlib.contextmanager
def wrong_host_key(host: Host) -> Iterator[None]:
    """The host shows a key that is in nobody's known_hosts, as after a new installation."""
    key = host.root / "ssh/host_key"
    pair = [key, key.with_suffix(".pub")]
    before = [file.read_bytes() for file in pair]
    make_key(key, host.name)
    host.start_sshd()
    try:
        yield
    finally:
        for file, content in zip(pair, before, strict=True):
            file.write_bytes(content)
        host.start_sshd()


@contextlib.contextmanager
def rate_limit(host: Host, mbit: int) -> Iterator[None]:
    """At most `mbit` Mbit/s into the host and the same out of it."""
    shape = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms"]
    ends = [["tc", "qdisc"], ["tc", "-n", host.netns, "qdisc"]]
    devices = [host.veth, "eth0"]
    with contextlib.ExitStack() as stack:
        for tool, device in zip(ends, devices, strict=True):
            run([*tool, "add", "dev", device, *shape], f"limit the rate of {host.name}")
            stack.callback(run, [*tool, "del", "dev", device, "root"], f"lift the rate limit of {host.name}")
        yield


@contextlib.contextmanager
def packet_loss(host: Host, probability: float) -> Iterator[None]:
    """Each packet that reaches the host is dropped with this probability, 0 to 1."""
    rule = [
        "INPUT",
        "-i",
        "eth0",
        "-m",
        "statistic",
        "--mode",
        "random",
        "--probability",
        f"{probability:.4f}",
        "-j",
        "DROP",
    ]
    host.run("iptables", "-w", "-A", *rule)
    try:
        yield
    finally:
        host.run("iptables", "-w", "-D", *rule)
