"""A launch that breaks on the way, when containers had been started: it is taken back on both hosts, in time, and says why."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.testbed import faults, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import wait_until
from tests.testbed.twin import AT_ONCE_S, TAKEN_BACK_S, User, clean, refused

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


def _until(what: Callable[[], bool]) -> None:
    assert wait_until(what, 20, every_s=0.05)


def _started(hosts: tuple[Host, ...]) -> bool:
    return [twin.containers(host) for host in hosts] == [["spark-lab-head"], ["spark-lab-worker"]]


def test_worker_container_killed_during_load(user: User, hosts: tuple[Host, ...]) -> None:
    newest = twin.logs(hosts[1], twin.NAMES[1])[-1:]
    begin = time.monotonic()
    with user.begin("up") as process:
        _until(lambda: _started(hosts))
        time.sleep(2)
        hosts[1].run("docker", "kill", "spark-lab-worker")
        done = twin.finish(process, begin)
    words = ("worker: rank 1 ended while starting (killed by SIGKILL)", "ran: docker run --name spark-lab-worker", "invoke logs --rank 1")
    refused(done, *words, within_s=TAKEN_BACK_S)
    assert "taking the start back on every node" in done.err
    clean(hosts)
    assert twin.logs(hosts[1], twin.NAMES[1])[-1:] != newest  # its log was saved


def test_vllm_rejects_its_arguments(user: User, hosts: tuple[Host, ...]) -> None:
    """vLLM's own last lines are in the message."""
    done = user.invoke("up", EXTRA_ARGS="--dtype nonsense")
    words = ("ended while starting (exit 2)", "ran: docker run", "last lines:", "argument --dtype: invalid choice: 'nonsense'")
    refused(done, *words, "try: invoke logs --rank ", within_s=TAKEN_BACK_S)
    clean(hosts)


def test_ctrl_c(user: User, hosts: tuple[Host, ...]) -> None:
    begin = time.monotonic()
    with user.begin("up") as process:
        _until(lambda: _started(hosts))
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        done = twin.finish(process, begin)
    print(f"{done.wall_s:.1f} s\n{done.err}")
    assert done.code == 1
    assert done.err.endswith("interrupted\n")
    assert "interrupted: taking the start back on every node" in done.err
    assert "Traceback" not in done.err
    assert done.wall_s < TAKEN_BACK_S
    clean(hosts)


def test_ctrl_c_twice_says_that_something_may_be_left(user: User, hosts: tuple[Host, ...]) -> None:
    """The second one breaks off the taking back, as a person wants who cannot wait."""
    begin = time.monotonic()
    with user.begin("up") as process:
        _until(lambda: _started(hosts))
        for wait_s in (2, 0.4):
            time.sleep(wait_s)
            process.send_signal(signal.SIGINT)
        done = twin.finish(process, begin)
    refused(done, "interrupted", "a rank may still run there", "invoke down", within_s=TAKEN_BACK_S)
    assert [twin.lock(host) for host in hosts] == [None, None]
    assert user.invoke("down").code == 0
    clean(hosts)


def test_ctrl_c_while_the_nodes_are_looked_at(user: User, hosts: tuple[Host, ...]) -> None:
    """At the moment when the locks are there and nothing else is."""
    begin = time.monotonic()
    with user.begin("up") as process:
        _until(lambda: any(twin.lock(host) for host in hosts))
        process.send_signal(signal.SIGINT)
        done = twin.finish(process, begin)
    assert (done.code, done.err.endswith("interrupted\n"), "Traceback" in done.err) == (1, True, False), done.err
    assert "started on" not in done.err
    assert done.wall_s < TAKEN_BACK_S
    clean(hosts)


def test_held_lock_killed_holder_and_stale_lock(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """Two launches from two places: the second is refused at once. Killed, the first one's lease runs out; then `down` cleans up."""
    with user.begin("up") as first:
        _until(lambda: _started(hosts))
        second = User.at(tmp_path).invoke("up")
        refused(second, "another launch is working on this node: root (pid ", f"pid {first.pid}: invoke up), since ", within_s=AT_ONCE_S)
        assert _started(hosts)
        first.kill()
        first.communicate()
    held = user.invoke("down")
    refused(held, f"pid {first.pid}: invoke up", within_s=AT_ONCE_S)
    left = re.search(r"the lock ends by itself in (\d+) s", held.err)
    assert left is not None
    assert 60 < int(left[1]) <= 120
    assert _started(hosts)
    for host in hosts:
        lease = {**(twin.lock(host) or {}), "until_unix_s": time.time() - 1}
        host.path(twin.LOCK).write_text(json.dumps(lease))
    down = user.invoke("down")
    assert down.code == 0, down.err
    assert down.wall_s < TAKEN_BACK_S
    clean(hosts)


def test_one_missed_look_is_no_reason_to_give_up(user: User, hosts: tuple[Host, ...]) -> None:
    """The worker's dockerd is silent for one look (10 s); the launch goes on."""
    with user.begin("up") as process:
        _until(lambda: _started(hosts))
        with faults.frozen(hosts[1], "dockerd"):
            time.sleep(13)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        done = twin.finish(process, time.monotonic())
    assert "interrupted: taking the start back" in done.err
    assert "docker does not answer" not in done.err
    clean(hosts)


def test_contact_lost_during_load(user: User, hosts: tuple[Host, ...]) -> None:
    """The cable is out for good: the launch is given up, the head cleaned, the worker named; once it is back, `down` cleans it too."""
    begin = time.monotonic()
    with user.begin("up", READY_TIMEOUT="100") as process:
        _until(lambda: _started(hosts))
        with faults.link_down(hosts[1]):
            done = twin.finish(process, begin)
            assert twin.containers(hosts[0]) == []
    refused(done, "worker: ", "did not answer", "may still run", "invoke down", within_s=110)
    assert [twin.lock(hosts[0]), twin.containers(hosts[1])] == [None, ["spark-lab-worker"]]
    for host in hosts:
        host.path(twin.LOCK).unlink(missing_ok=True)  # the worker's is a lease that ends by itself; not waited for here
    down = user.invoke("down")
    assert down.code == 0, down.err
    clean(hosts)
