"""What goes wrong on real nodes: every fault ends `up` in time, with one message that helps, and leaves both hosts clean."""

import json
from collections.abc import Iterator

import pytest

from tests.testbed import faults, image, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.twin import AT_ONCE_S, MASTER_PORT, PORT, UNREACHABLE_S, User, clean, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ready(testbed: Testbed) -> Testbed:
    twin.prepare(testbed)
    return testbed


@pytest.fixture
def hosts(ready: Testbed) -> Iterator[tuple[Host, ...]]:
    """Both hosts, clean before the test and after it, whatever it finds."""
    twin.clear(ready.hosts)
    yield ready.hosts
    twin.clear(ready.hosts)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User.at(tmp_path_factory.mktemp("user"))


# --- the node is not there ---


def test_sshd_stopped(user: User, hosts: tuple[Host, ...]) -> None:
    with faults.sshd_stopped(hosts[1]):
        done = user.invoke("up")
    refused(done, "worker: ", "root@10.77.0.2 port 22 takes no connection", "Connection refused", "sshd", within_s=AT_ONCE_S)
    clean(hosts)


def test_wrong_host_key(user: User, hosts: tuple[Host, ...]) -> None:
    with faults.wrong_host_key(hosts[1]):
        done = user.invoke("up")
    refused(done, "worker: ", "the host key of 10.77.0.2 has CHANGED", "known_hosts line 2", "ssh-keygen -f", within_s=AT_ONCE_S)
    clean(hosts)


def test_unreachable_address(user: User, hosts: tuple[Host, ...]) -> None:
    done = user.invoke("up", WORKER_IP="10.77.0.9", WORKER_SSH="root@10.77.0.9")
    refused(done, "worker: ", "10.77.0.9", "ran: take the launch lock", within_s=UNREACHABLE_S)
    clean(hosts)


def test_unreachable_node_in_down_and_status(user: User, hosts: tuple[Host, ...]) -> None:
    """`down` cannot confirm that nothing is left, and says so; `status` still shows the other node."""
    with faults.sshd_stopped(hosts[1]):
        down, status = user.invoke("down"), user.invoke("status", "--json")
    refused(down, "worker: ", "takes no connection", within_s=AT_ONCE_S)
    seen = json.loads(status.out)
    assert [rank["state"] for rank in seen["ranks"]] == ["stopped", "unreachable"]
    assert status.code == 1
    assert status.wall_s < AT_ONCE_S


# --- the node is not ready ---


def test_dockerd_stopped(user: User, hosts: tuple[Host, ...]) -> None:
    with faults.dockerd_stopped(hosts[1]):
        done = user.invoke("up")
        down = user.invoke("down")
    refused(done, "worker: docker does not answer", "Is the docker daemon running?", "ran: docker version", within_s=AT_ONCE_S)
    refused(down, "worker: ", "docker does not answer", within_s=AT_ONCE_S)
    clean(hosts)


def test_image_missing_on_one_host(user: User, hosts: tuple[Host, ...]) -> None:
    hosts[0].run("docker", "tag", image.TAG, "deb:only-head")
    try:
        done = user.invoke("up", "--skip-pull", IMAGE="deb:only-head")
    finally:
        hosts[0].run("docker", "rmi", "deb:only-head")
    refused(done, "worker: there is no image deb:only-head", "ran: docker image inspect deb:only-head", within_s=AT_ONCE_S)
    assert "head: " not in done.err
    clean(hosts)


def test_model_missing_on_one_host(user: User, hosts: tuple[Host, ...]) -> None:
    folder = hosts[0].path("/root/only-head")
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    done = user.invoke("up", "--skip-download", "--skip-sync", MODEL="/root/only-head")
    refused(done, "worker: missing: /root/only-head", "MODEL", within_s=AT_ONCE_S)
    assert "head: " not in done.err
    clean(hosts)


def test_full_disk(user: User, hosts: tuple[Host, ...]) -> None:
    with faults.small_disk(hosts[1], "/root/small", mib=8):
        done = user.invoke("up", WORKER_CACHE_ROOT="/root/small/cache")
        assert hosts[1].run("ls", "/root/small") == ""  # looking made nothing
    refused(done, "worker: only 8 MiB are free", "/root/small/cache", "CACHE_ROOT", within_s=AT_ONCE_S)
    clean(hosts)


def _ours(host: Host, *command: str) -> None:
    """A container that bears the launcher's label, as a worker's rank."""
    record = {"boot": "b0", "kit": "twin", "rank": 1, "role": "worker", "port": None, "health_url": None, "log": "docker", "settings": {}}
    label = f"spark-lab.record={json.dumps(record)}"
    words = ["docker", "run", "--detach", "--init", "--pull=never", "--name", "spark-lab-worker", "--label", label]
    host.run(*words, image.TAG, *command)


def test_full_home_does_not_keep_a_rank_from_being_stopped(user: User, hosts: tuple[Host, ...]) -> None:
    """The log cannot be saved; the container goes all the same, and `down` says that its log was lost."""
    _ours(hosts[1], "python3", "-c", "import time; print(('x' * 1000 + chr(10)) * 2000, flush=True); time.sleep(600)")
    with faults.small_disk(hosts[1], "/root/.local/state", mib=1):
        done = user.invoke("down")
    print(f"{done.wall_s:.1f} s\n{done.err}")
    assert (done.code, "kit twin stopped" in done.err) == (0, True), done.err
    assert "worker: the log could not be saved" in done.err
    assert "log saved" not in done.err
    clean(hosts)


def test_down_stops_a_container_though_the_settings_now_say_process(user: User, hosts: tuple[Host, ...]) -> None:
    _ours(hosts[1], "sleep", "600")
    done = user.invoke("down", RUNTIME="process", HEAD_VENV=str(twin.VENV), WORKER_VENV=str(twin.VENV))
    assert (done.code, "kit twin stopped" in done.err) == (0, True), done.err
    clean(hosts)


@pytest.mark.parametrize(("port", "setting"), [(PORT, "PORT"), (MASTER_PORT, "MASTER_PORT")])
def test_port_busy_on_the_head(user: User, hosts: tuple[Host, ...], port: int, setting: str) -> None:
    with twin.listener(hosts[0], port):
        done = user.invoke("up")
        assert port in twin.listening(hosts[0])
    refused(done, f"head: port {port} is in use by pid ", " of root: /usr/bin/python3", f"{setting}=", within_s=AT_ONCE_S)
    clean(hosts)


def test_docker_refuses_to_start_the_rank(user: User, hosts: tuple[Host, ...]) -> None:
    """`docker run` fails only after it has made the container: that goes too, and the head's is never started."""
    done = user.invoke("up", EXTRA_MOUNTS="/etc/hosts:/usr")
    words = ("worker: the node agent could not start spark-lab-worker (exit 1)", "ran: docker run --name spark-lab-worker", "last lines:")
    refused(done, *words, "not a directory", "docker ps", within_s=2 * AT_ONCE_S)
    assert "started on" not in done.err
    clean(hosts)


def test_foreign_container_of_the_name_is_not_touched(user: User, hosts: tuple[Host, ...]) -> None:
    made = hosts[1].run("docker", "run", "--detach", "--name", "spark-lab-worker", "--pull=never", image.TAG, "sleep", "600")
    up, down = user.invoke("up"), user.invoke("down")
    refused(up, "worker: a container of the rank's name exists that this tool did not make", "docker rm", within_s=AT_ONCE_S)
    assert (down.code, "kit twin was not running" in down.err) == (0, True), down.err
    assert hosts[1].run("docker", "ps", "--quiet", "--no-trunc") == made  # still runs, still the same
    assert twin.containers(hosts[0]) == []
    assert [twin.lock(host) for host in hosts] == [None, None]


def test_everything_wrong_is_named_at_once(user: User, hosts: tuple[Host, ...]) -> None:
    with twin.listener(hosts[0], PORT), faults.small_disk(hosts[1], "/root/small", mib=8):
        done = user.invoke("up", WORKER_CACHE_ROOT="/root/small/cache", MODEL="/nowhere")
    words = (
        "the check before the launch failed for 4 reasons",
        f"head: port {PORT}",
        "head: missing: /nowhere",
        "worker: missing: /nowhere",
        "worker: only 8 MiB",
    )
    refused(done, *words, within_s=AT_ONCE_S)
    clean(hosts)


def test_bad_settings_touch_nothing(user: User, hosts: tuple[Host, ...]) -> None:
    done = user.invoke("up", MASTER_PORT=str(PORT))
    refused(done, "PORT", within_s=AT_ONCE_S, code=2)
    assert not any(host.path(twin.LOCK).exists() for host in hosts)
