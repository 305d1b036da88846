"""`up` brings the head's image to the workers, says what runs, and refuses what differs when told to leave images alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import image, images, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import NAME, SERVED, look
from tests.testbed.twin import AT_ONCE_S, User, clean, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    testbed.up()
    images.clear(*testbed.hosts)
    yield testbed.hosts
    images.clear(*testbed.hosts)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User({**User.at(tmp_path).env, **SERVED, "IMAGE": NAME})


def test_up_ships_starts_and_tells_what_runs(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    source = images.make(head, NAME, 1, "ENV NCCL_DEBUG=INFO")
    up = user.invoke("up")
    assert up.code == 0, up.err
    assert up.err.index("head: sending picture:1") < up.err.index("started on worker") < up.err.index("started on head")
    assert "note: picture:1 has variables of the fabric inside: NCCL_DEBUG=INFO" in up.err
    assert (look(worker) or source).identity == source.identity

    seen = json.loads(user.invoke("status", "--json", "--passive").out)
    summary = {"identity": source.identity, "id": source.id, "digest": None, "stamp": None}
    assert [rank["record"]["image"] for rank in seen["ranks"]] == [summary, summary]
    assert f"  image picture:1, identity {source.short}\n" in user.invoke("status", "--passive").out

    # a restart that cannot succeed stops nothing, and one that can brings the image first
    missing = user.invoke("restart", IMAGE="none:1")
    refused(missing, "head: there is no image none:1", "invoke build makes it", within_s=AT_ONCE_S)
    assert [twin.containers(host) for host in hosts] == [["spark-lab-head"], ["spark-lab-worker"]]
    other = images.make(head, content="two")
    again = user.invoke("restart")
    assert again.code == 0, again.err
    assert again.err.index("head: sending picture:1") < again.err.index("kit twin stopped") < again.err.index("started on worker")
    assert again.err.count("sending") == 1
    ids = [host.run("docker", "inspect", "--format", "{{.Image}}", name).strip() for host, name in zip(hosts, twin.NAMES, strict=True)]
    assert ids == [other.id, other.id]
    assert user.invoke("down").code == 0
    clean(hosts)


def test_skip_pull_refuses_what_is_missing_or_differs(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    source = images.make(head)
    missing = user.invoke("up", "--skip-pull")
    refused(missing, "worker: there is no image picture:1", "ran: docker image inspect picture:1", "invoke ship", within_s=AT_ONCE_S)
    other = images.make(worker, content="two")
    words = f"worker: the image picture:1 is another one than the head's: identity {other.short}, on the head {source.short}"
    refused(user.invoke("up", SKIP_PULL="1"), words, "try: invoke ship", within_s=AT_ONCE_S)
    assert (look(worker) or source).id == other.id
    clean(hosts)


def test_nothing_is_sent_when_something_else_is_in_the_way(user: User, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    images.make(head)
    with twin.listener(head, twin.PORT):
        done = user.invoke("up")
    refused(done, f"head: port {twin.PORT} is in use", within_s=AT_ONCE_S)
    assert "sending" not in done.err
    assert images.names(worker) == {image.TAG}
    nowhere = user.invoke("up", IMAGE="none:1")
    refused(nowhere, "head: there is no image none:1", "invoke build makes it on the head", within_s=AT_ONCE_S)


def test_up_pulls_to_a_head_that_lacks_the_image(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """By digest, from a real registry: pulled on the head, shipped to the worker, started by the tag that both have."""
    if not images.registry_binary():
        pytest.skip("no registry here. To enable this, as root: python -m tests.testbed.hosts install")
    head, _ = hosts
    remote = f"{images.REGISTRY}/site/picture:1"
    with images.registry(tmp_path):
        images.make(head, remote)
        digest = "sha256:" + head.run("docker", "push", remote).partition("digest: sha256:")[2][:64]
        head.run("docker", "rmi", remote)
        up = user.invoke("up", IMAGE=f"{images.REGISTRY}/site/picture@{digest}")
    assert up.code == 0, up.err
    assert up.err.index("pulled ") < up.err.index("sending ") < up.err.index("started on worker")
    tag = f"{images.REGISTRY}/site/picture:pinned-{digest[7:23]}"
    for host, name in zip(hosts, twin.NAMES, strict=True):
        assert host.run("docker", "inspect", "--format", "{{.Config.Image}}", name).strip() == tag
    seen = json.loads(user.invoke("status", "--json", "--passive", IMAGE=f"{images.REGISTRY}/site/picture@{digest}").out)
    assert seen["record"]["image"]["digest"] == f"{images.REGISTRY}/site/picture@{digest}"
    assert user.invoke("down").code == 0
