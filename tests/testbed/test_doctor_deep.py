"""What doctor reads out of images and moves over links, on two real hosts: docker's own files, TCP through veth and a traffic shaper."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.facts.nccl import remembered
from tests.testbed import faults, image, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.twin import User

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

Hosts = tuple[Host, ...]
NAME = "nccl:1"
INSIDE = "usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib"
SIZE_MIB = 100
RECORD = json.dumps({"kit": "twin", "boot": "b0", "role": "head", "started_unix_s": 4e9})


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[Hosts]:
    for host in testbed.hosts:
        image.load(host)
    twin.clear(testbed.hosts)
    yield testbed.hosts
    for host in testbed.hosts:
        host.attempt("docker", "rmi", "--force", NAME)
    twin.clear(testbed.hosts)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User.at(tmp_path)


def import_image(host: Host, version: str, tail: str = "") -> None:
    """An image that holds a library of SIZE_MIB at torch's place, and a link to another at the distribution's. No shell is in it."""
    words = f"NCCL version {version}\\0NCCL_IB_SUBNET_AWARE_ROUTING\\0{tail}"
    script = f"""
        rm -rf /root/nccl && mkdir -p /root/nccl/{INSIDE} /root/nccl/usr/lib/$(uname -m)-linux-gnu && cd /root/nccl
        {{ head -c {SIZE_MIB}M /dev/zero; printf '{words}'; }} > {INSIDE}/libnccl.so.2
        cd usr/lib/$(uname -m)-linux-gnu && ln -s libnccl.so.2.28.9 libnccl.so.2
        printf 'NCCL version 2.28.9+cuda13.0\\0' > libnccl.so.2.28.9
        cd /root/nccl && tar -c --mtime=@0 --sort=name usr | docker import - {NAME} && rm -r /root/nccl"""
    host.run("sh", "-ec", script)


def look(user: User, *words: str, **settings: str) -> dict[tuple[str, str], str]:
    """(id, where) of every finding -> what it says; the last of several."""
    done = user.invoke("doctor", "--json", *words, **settings)
    print(f"{done.wall_s:.1f} s\n{done.err}")
    assert done.err == ""
    return {(each["id"], each["where"]): each["what"] for each in json.loads(done.out)["findings"]}


def test_libraries_are_read_out_of_the_images(user: User, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """No container is left; the second look opens no image; a rebuilt image is opened again."""
    monkeypatch.setenv("XDG_STATE_HOME", user.env["XDG_STATE_HOME"])
    for host in hosts:
        import_image(host, "2.30.7+cuda13.0")
    begin = time.monotonic()
    first = look(user, IMAGE=NAME)
    cost_s = time.monotonic() - begin
    assert f"/{INSIDE}/libnccl.so.2: 2.30.7+cuda13.0 sha256 " in first["nccl-library", "head"]
    assert "2.28.9+cuda13.0" in first["nccl-twice", "worker"]
    assert not [key for key in first if key[0] in ("nccl-differs", "nccl-unknown", "image-differs")]
    assert [twin.containers(host) for host in hosts] == [[], []]
    known = remembered("twin")
    assert len(known) in (1, 2)  # docker import notes the time, so the hosts' ids may differ
    begin = time.monotonic()
    second = look(user, IMAGE=NAME)
    print(f"first look {cost_s:.1f} s, {SIZE_MIB} MiB in each image; the second {time.monotonic() - begin:.1f} s")
    assert {key: second[key] for key in first if key[0].startswith("nccl")} == {
        key: first[key] for key in first if key[0].startswith("nccl")
    }
    import_image(hosts[1], "2.30.7+cuda13.0", tail="another build")
    found = look(user, IMAGE=NAME)
    assert "head 2.30.7+cuda13.0 sha256 " in found["nccl-differs", "cluster"]
    assert ("image-differs", "cluster") in found
    assert len(remembered("twin")) == len(known) + 1


def test_a_venv_and_a_patched_library_on_the_nodes(user: User, hosts: Hosts) -> None:
    """Process runtime: the venv's own files; the ring's library is on one node only."""
    at = "/root/venv/lib/python3.12/site-packages/nvidia/nccl/lib"
    for host, build in zip(hosts, "ab", strict=True):
        host.run("sh", "-ec", f"mkdir -p {at} && printf 'NCCL version 2.30.7+cuda13.0\\0{build}' > {at}/libnccl.so.2")
    hosts[0].run("sh", "-ec", "mkdir -p /root/nccl-2.30.7 && echo SWITCHLESS_RING_ONLY > /root/nccl-2.30.7/libnccl.so.2.30.7")
    try:
        venvs = {"RUNTIME": "process", "HEAD_VENV": "/root/venv", "WORKER_VENV": "/root/venv"}
        found = look(user, **venvs)
        assert f"{at}/libnccl.so.2: 2.30.7+cuda13.0" in found["nccl-library", "head"]
        assert ("nccl-differs", "cluster") in found
        found = look(user, **venvs, USE_HOST_NCCL="1")
        assert found["nccl-patched-missing", "worker"].endswith("No such file or directory")
        assert ("nccl-patched-missing", "head") not in found
    finally:
        for host in hosts:
            host.run("rm", "-rf", "/root/venv", "/root/nccl-2.30.7")


def rates(found: dict[tuple[str, str], str], kind: str) -> dict[str, float]:
    """Receiver -> Gb/s."""
    return {where: float(what.split("TCP: ")[1].split()[0]) for (name, where), what in found.items() if name == kind}


def test_a_fast_link_is_accepted_and_a_slow_one_found(user: User, hosts: Hosts) -> None:
    """veth says 10 Gb/s; the shaper lets a fiftieth of it through, both ways."""
    fast = look(user, "--transfer")
    assert set(rates(fast, "transfer-rate")) == {"head", "worker"}, fast
    with faults.rate_limit(hosts[1], 200):
        slow = look(user, "--transfer")
    measured = rates(slow, "link-moves-little")
    print(f"fast {rates(fast, 'transfer-rate')}, slow {measured}")
    assert set(measured) == {"head", "worker"}
    assert all(0.1 < rate < 0.25 for rate in measured.values())
    assert "expected 1.5 or more of the link's 10" in slow["link-moves-little", "worker"]
    assert not {name for name, _ in look(user)} & {"transfer-rate", "link-moves-little", "transfer-not-run"}


def test_a_firewall_in_the_way_is_named(user: User, hosts: Hosts) -> None:
    rule = ["INPUT", "-p", "tcp", "--dport", "20000:29000", "-j", "REJECT", "--reject-with", "tcp-reset"]
    hosts[1].run("iptables", "-w", "-A", *rule)
    try:
        found = look(user, "--transfer")
    finally:
        hosts[1].run("iptables", "-w", "-D", *rule)
    assert "no connection to 10.77.0.2 port 2" in found["transfer-failed", "worker"]
    assert set(rates(found, "transfer-rate")) == {"head"}


def test_no_transfer_while_a_rank_runs(user: User, hosts: Hosts) -> None:
    label = f"--label=spark-lab.record={RECORD}"
    hosts[0].run("docker", "run", "--detach", "--init", "--pull=never", "--name=spark-lab-head", label, image.TAG, "sleep", "600")
    found = look(user, "--transfer")
    assert found["transfer-not-run", "cluster"] == "no transfer was made: head runs spark-lab-head"
    assert not rates(found, "transfer-rate")
    assert set(rates(look(user, "--transfer", "--force"), "transfer-rate")) == {"head", "worker"}
