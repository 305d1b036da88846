"""Doctor on two real hosts: a healthy pair gives no error, every fault its finding, and the repaired host none again."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import session
from cluster.doctor import before
from cluster.doctor.examine import examine
from cluster.facts.node import gather
from cluster.plan import plan_up
from cluster.settings import load
from tests.testbed import faults, image, model, twin, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.twin import AT_ONCE_S, PORT, User, clean, listener, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

Found = set[tuple[str, str]]
Hosts = tuple[Host, ...]
Fault = Callable[[Hosts], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def ready(testbed: Testbed) -> Testbed:
    """Hosts with the image and the model; vLLM itself is not needed to look."""
    for host in testbed.hosts:
        image.load(host)
    if not (vllm_env.CACHE / "tiny-qwen3-moe/model.safetensors").exists():
        vllm_env.ensure()
        model.make()
    return testbed


@pytest.fixture
def hosts(ready: Testbed) -> Iterator[Hosts]:
    twin.clear(ready.hosts)
    yield ready.hosts
    twin.clear(ready.hosts)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User.at(tmp_path_factory.mktemp("user"))


def look(**settings: str) -> Found:
    """(id, where) of every error and warning."""
    effective = load({"kit": "twin"}, environ=settings, path=Path("/nonexistent"))
    with session.opened(effective) as cluster:
        findings = examine(effective, gather(effective, cluster.nodes))
    print("\n".join(f"{each.level} {each.id} {each.where}: {each.what}" for each in findings))
    return {(each.id, each.where) for each in findings if each.level != "info"}


def left(hosts: Hosts) -> list[Path]:
    """The lock and what is kept of launches on the hosts, those of earlier tests included."""
    return [path for host in hosts for path in (host.path(twin.LOCK), *host.path(twin.STATE).rglob("*")) if path.exists()]


def test_a_healthy_pair_has_no_error(user: User, hosts: Hosts) -> None:
    before = left(hosts)
    done = user.invoke("doctor")
    print(f"doctor: {done.wall_s:.1f} s\n{done.out}")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("kit twin: 0 errors, 0 warnings, ")
    assert left(hosts) == before


# The faults, each with the setting it needs


@contextlib.contextmanager
def undone(host: Host, do: str, undo: str) -> Iterator[None]:
    """A shell command on the host, and another that takes it back."""
    host.run("sh", "-c", do)
    try:
        yield
    finally:
        host.run("sh", "-c", undo)


def nothing(hosts: Hosts) -> contextlib.AbstractContextManager[None]:
    """The setting alone is wrong."""
    return contextlib.nullcontext()


def second_device(hosts: Hosts) -> contextlib.AbstractContextManager[None]:
    """A port whose other end is switched off."""
    make = "ip link add fab0 type veth peer name fab1; ip link set fab0 up"
    return undone(hosts[1], make, "ip link del fab0")


def other_image(hosts: Hosts) -> contextlib.AbstractContextManager[None]:
    """One name, two contents; the worker's bakes a variable."""
    stack = contextlib.ExitStack()
    stack.enter_context(undone(hosts[0], f"docker tag {image.TAG} deb:two", "docker rmi deb:two"))
    make = "tar -c -C /etc hostname | docker import --change 'ENV NCCL_SOCKET_IFNAME=eth9' - deb:two"
    stack.enter_context(undone(hosts[1], make, "docker rmi deb:two"))
    return _closing(stack)


@contextlib.contextmanager
def _closing(stack: contextlib.ExitStack) -> Iterator[None]:
    with stack:
        yield


def run(name: str, record: str = "") -> str:
    label = f"--label 'spark-lab.record={record}'" if record else ""
    return f"docker run --detach --init --pull=never --name {name} {label} {image.TAG} sleep 600"


def broken_model(hosts: Hosts) -> contextlib.AbstractContextManager[None]:
    """A folder of weights on both hosts; on the worker the file is a link to nowhere."""
    stack = contextlib.ExitStack()
    for host, weights in zip(hosts, ("echo x > model.safetensors", "ln -s ../gone model.safetensors"), strict=True):
        make = f"mkdir -p /root/weights && cd /root/weights && echo '{{}}' > config.json && {weights}"
        stack.enter_context(undone(host, make, "rm -r /root/weights"))
    return _closing(stack)


def half_download(hosts: Hosts) -> contextlib.AbstractContextManager[None]:
    at = "/root/.cache/huggingface/hub/models--m--n/blobs"
    return undone(hosts[1], f"mkdir -p {at} && touch -d '3 hours ago' {at}/ab.incomplete", "rm -r /root/.cache/huggingface/hub")


OTHER_KIT = json.dumps({"kit": "spark3", "boot": "b0", "role": "head", "started_unix_s": 4e9})
FAULTS: dict[str, tuple[Fault, dict[str, str], Found]] = {
    "mtu": (lambda hosts: faults.mtu(hosts[1], 1280), {}, {("mtu-mismatch", "cluster")}),
    "cable out": (lambda hosts: faults.link_down(hosts[1]), {}, {("node-unreachable", "worker"), ("peer-silent", "head")}),
    "device down": (second_device, {"WORKER_CX7_IF": "fab0"}, {("link-down", "worker"), ("device-other", "worker")}),
    "device absent": (nothing, {"WORKER_CX7_IF": "enp1s0"}, {("device-absent", "worker")}),
    "no route": (
        lambda hosts: undone(hosts[0], "ip route add unreachable 10.77.0.2", "ip route del unreachable 10.77.0.2"),
        {}, {("route-none", "head"), ("peer-silent", "head")},
    ),
    "by a gateway": (
        lambda hosts: undone(hosts[0], "ip route add 10.77.0.2 via 10.77.0.254", "ip route del 10.77.0.2"), {}, {("route-other", "head")},
    ),
    "address gone": (nothing, {"HEAD_IP": "10.77.0.65", "HEAD_SSH": "root@10.77.0.1"}, {("address-absent", "head")}),
    "sshd stopped": (lambda hosts: faults.sshd_stopped(hosts[1]), {}, {("node-unreachable", "worker")}),
    "key changed": (lambda hosts: faults.wrong_host_key(hosts[1]), {}, {("host-key-changed", "worker")}),
    "docker stopped": (lambda hosts: faults.dockerd_stopped(hosts[1]), {}, {("docker-silent", "worker")}),
    "docker hangs": (lambda hosts: faults.frozen(hosts[1], "dockerd"), {}, {("docker-silent", "worker"), ("facts-late", "worker")}),
    "foreign container": (
        lambda hosts: undone(hosts[1], run("vllm-other"), "docker rm --force vllm-other"), {}, {("container-foreign", "worker")},
    ),
    "foreign name": (
        lambda hosts: undone(hosts[1], run("spark-lab-worker"), "docker rm --force spark-lab-worker"), {}, {("container-name", "worker")},
    ),
    "other kit": (
        lambda hosts: undone(hosts[0], run("spark-lab-head", OTHER_KIT), "docker rm --force spark-lab-head"),
        {}, {("container-other-kit", "head")},
    ),
    "port held": (lambda hosts: listener(hosts[0], PORT), {}, {("port-held", "head")}),
    "disk small": (
        lambda hosts: faults.small_disk(hosts[1], "/root/small", 8), {"WORKER_CACHE_ROOT": "/root/small/cache"}, {("disk-cache", "worker")},
    ),
    "image missing": (nothing, {"IMAGE": "deb:none"}, {("image-missing", "head"), ("image-missing", "worker")}),
    "image differs": (other_image, {"IMAGE": "deb:two"}, {("image-differs", "cluster"), ("image-baked-variables", "worker")}),
    "weights missing": (nothing, {"MODEL": "/no"}, {("weights-missing", "head"), ("weights-missing", "worker")}),
    "weights broken": (broken_model, {"MODEL": "/root/weights"}, {("weights-incomplete", "worker")}),
    "download broken off": (half_download, {}, {("hub-incomplete", "worker")}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_its_repair_too(hosts: Hosts, name: str) -> None:
    fault, settings, expected = FAULTS[name]
    with fault(hosts):
        found = look(**settings)
    assert expected <= found
    # A route by the switch may or may not carry packets: what the peer then answers is not the point.
    assert {pair for pair in found if pair[0] not in ("peer-silent",)} <= expected
    assert look() == set()


def test_a_host_key_that_nobody_has_accepted(ready: Testbed, hosts: Hosts, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(ready.ssh_config.read_text().replace(str(ready.known_hosts), str(tmp_path / "none")))
    assert look(SSH_CONFIG=str(config)) == {("host-key-unknown", "head"), ("host-key-unknown", "worker")}


# A launch


def test_up_refuses_what_doctor_knows(user: User, hosts: Hosts) -> None:
    with faults.mtu(hosts[1], 1280):
        done = user.invoke("up")
    words = ("cluster: the fabric's MTU is head 1500, worker 1280 (mtu-mismatch: ", "ip link set DEVICE mtu 9000", "--skip-doctor")
    refused(done, *words, within_s=AT_ONCE_S)
    clean(hosts)


def test_up_can_be_told_to_start_all_the_same(user: User, hosts: Hosts) -> None:
    """It gets as far as `docker run`, which is made to fail here."""
    with faults.mtu(hosts[1], 1280):
        done = user.invoke("up", "--skip-doctor", EXTRA_MOUNTS="/etc/hosts:/usr")
    refused(done, "worker: the node agent could not start spark-lab-worker", within_s=2 * AT_ONCE_S)
    assert "mtu" not in done.err
    clean(hosts)


def test_doctor_takes_little_of_a_launchs_time(hosts: Hosts) -> None:
    """Best of five, each look beside the check it runs with: what doctor adds to a launch."""
    effective = load({"kit": "twin"}, environ={}, path=Path("/nonexistent"))
    stage = plan_up(effective).stage("check")
    spent: dict[bool, list[float]] = {True: [], False: []}
    with session.opened(effective) as cluster:
        cluster.nodes.stage(stage)  # the connections are open, as after the lock
        for doctor in (True, False) * 5:
            begin = time.monotonic()
            before.look(cluster, stage, doctor=doctor)
            spent[doctor].append(time.monotonic() - begin)
    added = min(spent[True]) - min(spent[False])
    print(f"with doctor {min(spent[True]):.2f} s, without {min(spent[False]):.2f} s, added {added:.2f} s")
    assert added < 1.0
