"""`invoke ship` between two real dockerds over real ssh: once, verified, and with nothing lost when it fails."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import faults, image, images, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import NAME, look
from tests.testbed.shell import wait_until
from tests.testbed.twin import User

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    """Both hosts with deb:1 alone, before and after."""
    testbed.up()
    images.clear(*testbed.hosts)
    yield testbed.hosts
    images.clear(*testbed.hosts)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User({**User.at(tmp_path).env, "IMAGE": NAME})


def test_a_differing_image_is_shipped_once(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    source, former = images.make(head), images.make(worker, content="two")
    assert former.identity != source.identity
    done = user.invoke("ship")
    assert done.code == 0, done.err
    assert "head: sending picture:1, about 0.06 GB, to worker\n" in done.err
    assert f"worker: picture:1 is the head's image now (identity {source.short})\n" in done.err
    arrived = look(worker)
    assert arrived is not None
    assert (arrived.identity, arrived.layers) == (source.identity, source.layers)
    assert look(worker, former.id) == former.__class__(**{**former.__dict__, "name": former.id})  # there, without a name
    assert images.names(head) == images.names(worker) == {image.TAG, NAME}

    again = user.invoke("ship")
    assert (again.code, again.err) == (0, f"worker: has the head's image already (identity {source.short})\n")
    forced = user.invoke("ship", "--force")
    assert "sending" in forced.err


def test_no_image_to_ship(user: User, hosts: tuple[Host, ...]) -> None:
    done = user.invoke("ship")
    twin.refused(done, "head: there is no image picture:1 to ship", "invoke build", "--archive FILE.tar", within_s=twin.AT_ONCE_S)


def test_a_cut_link_loses_nothing_and_a_retry_works(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    source, former = images.make(head, mib=20), images.make(worker, content="two")
    begin = time.monotonic()
    with faults.rate_limit(worker, 40), user.begin("ship") as process:
        assert wait_until(lambda: images.shipped_bytes(head) > 4 << 20, 30)
        with faults.link_down(worker):
            done = twin.finish(process, begin)
    print(done.err)
    assert done.code == 1
    assert "worker: the image did not get there" in done.err
    assert "what the node had is untouched" in done.err
    kept = look(worker)
    assert kept is not None
    assert kept.id == former.id
    assert images.names(head) == {image.TAG, NAME}
    worker.path(twin.LOCK).unlink(missing_ok=True)  # the lease of a launch that could not give it back ends after two minutes
    again = user.invoke("ship")
    assert again.code == 0, again.err
    assert (look(worker) or former).identity == source.identity


def test_the_worker_s_disk_is_full(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    images.make(head)
    former = images.make(worker, content="two")
    with faults.small_disk(worker, "/var/lib/docker/tmp", 8):
        done = user.invoke("ship")
    twin.refused(done, "worker: the image did not get there", "no space left on device", "docker image prune", within_s=60)
    assert (look(worker) or former).id == former.id
    assert user.invoke("ship").code == 0


def test_an_interrupted_ship_leaves_nothing_behind(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    images.make(head, mib=20)
    begin = time.monotonic()
    with faults.rate_limit(worker, 40), user.begin("ship") as process:
        assert wait_until(lambda: images.shipped_bytes(head) > 4 << 20, 30)
        process.send_signal(signal.SIGINT)
        done = twin.finish(process, begin)
    print(f"{time.monotonic() - begin:.1f} s\n{done.err}")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert wait_until(lambda: not twin.processes(head, "docker save") and not twin.processes(worker, "docker load"), 60)
    assert wait_until(lambda: images.names(head) == {image.TAG, NAME}, 60)
    assert images.names(worker) == {image.TAG}
    assert [twin.lock(host) for host in hosts] == [None, None]


def test_what_arrived_whole_is_not_sent_again(user: User, hosts: tuple[Host, ...]) -> None:
    """As after a cut between the load and the new name."""
    head, worker = hosts
    source = images.make(head)
    head.run("docker", "tag", NAME, f"spark-lab/ship:{source.short}")
    archive = head.run("docker", "save", "--output", "/tmp/ship.tar", f"spark-lab/ship:{source.short}")
    assert archive == ""
    head.run("docker", "rmi", f"spark-lab/ship:{source.short}")
    worker.path("/tmp/ship.tar").write_bytes(head.path("/tmp/ship.tar").read_bytes())
    worker.run("docker", "load", "--input", "/tmp/ship.tar")
    done = user.invoke("ship")
    assert (done.code, done.err) == (0, f"worker: picture:1 is the head's image now (identity {source.short})\n")
    assert images.names(worker) == {image.TAG, NAME}
    for host in hosts:
        host.path("/tmp/ship.tar").unlink()


def test_by_this_machine_when_the_head_cannot_log_in(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    source = images.make(head)
    key = head.path("/root/.ssh/id_ed25519")
    content = key.read_bytes()
    key.unlink()
    try:
        done = user.invoke("ship")
    finally:
        key.write_bytes(content)
        key.chmod(0o600)
    assert done.code == 0, done.err
    assert "note: the image goes through this machine" in done.err
    assert "Permission denied" in done.err
    arrived = look(worker)
    assert arrived is not None
    assert arrived.identity == source.identity
    assert images.names(head) == {image.TAG, NAME}


def test_an_archive_without_a_network(user: User, hosts: tuple[Host, ...]) -> None:
    """Neither host has a way out: everything comes from the file on the head."""
    head, worker = hosts
    source = images.make(head)
    head.run("docker", "save", "--output", "/tmp/picture.tar", NAME)
    head.run("docker", "rmi", NAME)
    done = user.invoke("ship", "--archive", "/tmp/picture.tar")
    assert done.code == 0, done.err
    assert f"head: loaded picture:1: identity {source.short}\n" in done.err
    assert [(look(host) or source).identity for host in hosts] == [source.identity] * 2
    assert look(worker) is not None
    again = user.invoke("ship", "--archive", "/tmp/picture.tar")
    assert f"head: picture:1 is the archive's image already (identity {source.short})\n" in again.err
    assert "loading" not in again.err

    other = images.make(head, content="other")
    refused = user.invoke("ship", "--archive", "/tmp/picture.tar")
    twin.refused(refused, "head: picture:1 on this node is another image than the archive's", "--force", within_s=twin.AT_ONCE_S, code=2)
    assert (look(head) or source).id == other.id
    named = user.invoke("ship", "--archive", "/tmp/picture.tar", IMAGE="site/other:2")  # one image in it: that is meant
    assert named.code == 0, named.err
    assert (look(worker, "site/other:2") or other).identity == source.identity

    head.path("/tmp/picture.tar").write_text("no tar")
    twin.refused(user.invoke("ship", "--archive", "/tmp/picture.tar"), "/tmp/picture.tar is no archive of `docker save`", within_s=20)
    head.path("/tmp/picture.tar").unlink()
    twin.refused(user.invoke("ship", "--archive", "/tmp/picture.tar"), "No such file or directory: '/tmp/picture.tar'", within_s=20)
