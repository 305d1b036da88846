"""The testbed is what it says: separate machines for ssh, files, network and docker, and gone without a trace."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.testbed import faults, image, leftovers
from tests.testbed.conftest import demanded
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import TestbedError, wait_until

# --- ssh ---


def test_ssh_reaches_each_host_under_its_own_name(testbed: Testbed) -> None:
    assert [testbed.ssh(host, "hostname").stdout for host in testbed.hosts] == ["spark1\n", "spark2\n"]


def test_host_keys_differ(testbed: Testbed) -> None:
    keys = [line.split()[2] for line in testbed.known_hosts.read_text().splitlines()]
    assert len(set(keys)) == 2


def test_an_unknown_host_key_is_refused(testbed: Testbed, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    words = ["ssh", "-F", str(testbed.ssh_config), "-o", f"UserKnownHostsFile={tmp_path}/empty", "spark1", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 255
    assert "No ED25519 host key is known for 10.77.0.1" in done.stderr


def test_a_changed_host_key_is_refused_and_the_old_one_comes_back(testbed: Testbed) -> None:
    host = testbed.hosts[1]
    with faults.wrong_host_key(host):
        refused = testbed.ssh(host, "true")
    assert refused.status == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    assert testbed.ssh(host, "true").status == 0


def test_hosts_reach_each_other_by_name_without_a_password(testbed: Testbed) -> None:
    assert testbed.ssh(testbed.hosts[0], "ssh spark2 hostname").stdout == "spark2\n"
    assert testbed.ssh(testbed.hosts[1], "ssh spark1 hostname").stdout == "spark1\n"


def test_rsync_between_hosts(testbed: Testbed) -> None:
    head, worker = testbed.hosts
    head.path("/root/weights.bin").write_bytes(bytes(range(256)) * 400)
    assert testbed.ssh(head, "rsync -a /root/weights.bin spark2:/root/copy.bin").status == 0
    assert worker.path("/root/copy.bin").read_bytes() == bytes(range(256)) * 400
    for file in (head.path("/root/weights.bin"), worker.path("/root/copy.bin")):
        file.unlink()


# --- separate machines ---


@pytest.mark.parametrize("folder", ["/root", "/tmp", "/run", "/dev/shm", "/etc/docker"])
def test_a_file_on_one_host_is_on_no_other(hosts: tuple[Host, ...], folder: str) -> None:
    head, worker = hosts
    head.run("touch", f"{folder}/only-here")
    try:
        assert worker.attempt("test", "-e", f"{folder}/only-here").status == 1
        assert not Path(folder, "only-here").exists()
    finally:
        head.run("rm", f"{folder}/only-here")


def test_host_name_and_process_list_are_private(hosts: tuple[Host, ...]) -> None:
    assert [host.run("hostname") for host in hosts] == ["spark1\n", "spark2\n"]
    sshds = [line for line in hosts[0].run("ps", "-eo", "args=").splitlines() if line.startswith("sshd: /usr/sbin/sshd")]
    assert len(sshds) == 1


def test_ipc_namespaces_differ(hosts: tuple[Host, ...]) -> None:
    spaces = {host.run("readlink", "/proc/self/ns/ipc") for host in hosts} | {os.readlink("/proc/self/ns/ipc") + "\n"}
    assert len(spaces) == 3


def test_sys_shows_the_hosts_own_interfaces(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        assert host.run("ls", "/sys/class/net").split() == ["eth0", "lo"]
        assert "memory" in host.run("ls", "/sys/fs/cgroup") or "cgroup.controllers" in host.run("ls", "/sys/fs/cgroup")


def test_every_host_knows_the_others_names(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        assert host.run("getent", "hosts", "spark1").split() == ["10.77.0.1", "spark1"]
        assert host.run("getent", "hosts", "spark2").split() == ["10.77.0.2", "spark2"]


# --- docker ---


def test_docker_runs_on_each_with_one_image_id(with_image: tuple[Host, ...]) -> None:
    assert len({image.image_id(host) for host in with_image}) == 1
    for host in with_image:
        said = host.run("docker", "run", "--rm", "--pull=never", "--network", "host", image.TAG, "hostname")
        assert said == f"{host.name}\n"


def test_daemons_are_two(hosts: tuple[Host, ...]) -> None:
    ids = {host.run("docker", "info", "--format", "{{.ID}}") for host in hosts}
    assert len(ids) == 2


def test_production_flags_are_taken(with_image: tuple[Host, ...]) -> None:
    """What plain runc refuses to a root without CAP_SYS_RESOURCE, and docker to a machine without a GPU."""
    host = with_image[0]
    flags = "--privileged --gpus all --network host --ipc host --ulimit memlock=-1 --shm-size 1g --init"
    said = host.run("docker", "run", "--rm", "--pull=never", *flags.split(), image.TAG, "python3", "-c", "print(6 * 7)")
    assert said == "42\n"
    assert '"ociVersion"' in host.path("/run/nvidia-hook.log").read_text()  # the stub was called for the container


def test_a_container_that_outgrows_its_memory_is_killed(with_image: tuple[Host, ...]) -> None:
    host = with_image[1]
    eat = ["python3", "-c", "held = bytearray(200 << 20)"]
    assert host.attempt("docker", "run", "--name", "eater", "--pull=never", "--memory", "64m", image.TAG, *eat).status == 137
    state = json.loads(host.run("docker", "inspect", "--format", "{{json .State}}", "eater"))
    host.run("docker", "rm", "eater")
    assert (state["OOMKilled"], state["ExitCode"]) == (True, 137)


def test_stopped_dockerd_is_seen_and_comes_back(hosts: tuple[Host, ...]) -> None:
    with faults.dockerd_stopped(hosts[0]):
        gone = hosts[0].attempt("docker", "ps")
        assert hosts[1].attempt("docker", "ps").status == 0
    assert gone.status == 1
    assert "Is the docker daemon running?" in gone.stderr
    assert hosts[0].attempt("docker", "ps").status == 0


# --- up and down ---


def test_up_twice_does_nothing(testbed: Testbed) -> None:
    before = [host.process("init") for host in testbed.hosts]
    assert Testbed(hosts=2, mounts=testbed.layout.mounts).up() is False
    assert [host.process("init") for host in testbed.hosts] == before


def test_another_layout_says_what_to_do(testbed: Testbed) -> None:
    with pytest.raises(TestbedError, match=r"another one is up(.|\n)*try: python -m tests.testbed.hosts down"):
        Testbed(hosts=3).up()


def test_down_refuses_to_leave_a_strange_process_behind(testbed: Testbed) -> None:
    """A shell that somebody opened in a host's network is named, not killed; once it has ended, `down` goes through."""
    stranger = subprocess.Popen(["ip", "netns", "exec", testbed.hosts[0].netns, "sleep", "300"])
    time.sleep(0.2)
    try:
        with pytest.raises(TestbedError, match=f"process {stranger.pid}: sleep 300"):
            testbed.down()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        testbed.down()
        testbed.up()


def test_down_leaves_nothing_and_up_works_again(testbed: Testbed) -> None:
    processes = [p for host in testbed.hosts for what in ("init", "sshd", "dockerd") if (p := host.process(what))]
    testbed.hosts[0].run("sh", "-c", "setsid sleep 300 >/dev/null 2>&1 </dev/null &")  # nobody recorded this one
    mine = os.readlink("/proc/self/ns/net")
    try:
        testbed.down()
        assert len(processes) == 6
        assert not any(process.alive() for process in processes)
        assert leftovers.left(testbed.state) == []
        assert {os.readlink(path) for path in _network_namespaces()} == {mine}
        assert sorted(entry.name for entry in testbed.state.iterdir()) == ["lock", "logs"]
    finally:
        testbed.up()
    assert testbed.ssh(testbed.hosts[0], "hostname").stdout == "spark1\n"


def test_a_host_that_died_is_seen_and_up_rebuilds_the_whole(testbed: Testbed) -> None:
    init = testbed.hosts[1].process("init")
    assert init is not None
    init.send(signal.SIGKILL)
    assert wait_until(lambda: not init.alive(), 5)
    assert testbed.status()[1] == "spark2 10.77.0.2 init:DOWN sshd:DOWN dockerd:DOWN"
    assert testbed.up() is True
    assert "DOWN" not in " ".join(testbed.status())


def test_four_hosts_without_docker_that_keep_a_mount(testbed: Testbed, tmp_path: Path) -> None:
    """tmp_path lies under /tmp, of which each host has its own: it is there only because it was named."""
    (tmp_path / "shard").write_text("weights\n")
    testbed.down()
    try:
        with Testbed(hosts=4, docker=False, mounts=[tmp_path]) as four:
            assert [four.ssh(host, "hostname").stdout for host in four.hosts] == [f"spark{n}\n" for n in (1, 2, 3, 4)]
            assert four.ssh(four.hosts[3], f"cat {tmp_path}/shard").stdout == "weights\n"
            assert four.hosts[0].attempt("docker", "ps").status == 1
    finally:
        testbed.up()


def _network_namespaces() -> list[Path]:
    """Of every live process whose namespace can be read."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            os.readlink(path)
            found.append(path)
        except OSError:
            continue
    return found


# --- without a testbed ---


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, False), ({"CI": "true"}, True), ({"TESTBED": "1"}, True), ({"CI": "false", "TESTBED": "0"}, False)],
)
def test_where_a_testbed_is_demanded(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool) -> None:
    for name in ("CI", "TESTBED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert demanded() is expected


@pytest.mark.parametrize("count", [0, 5])
def test_number_of_hosts_is_checked(count: int) -> None:
    with pytest.raises(TestbedError, match=f"{count} hosts asked for"):
        Testbed(hosts=count).up()


def test_a_mount_must_exist_before_the_hosts() -> None:
    with pytest.raises(TestbedError, match="--mount /no/such/folder: no such absolute path"):
        Testbed(mounts=["/no/such/folder"]).up()
