"""`invoke pull`, and `invoke ship` by a registry: a real registry, real dockerds."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import image, images
from tests.testbed.conftest import demanded
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import NAME, REGISTRY, Checkout, look
from tests.testbed.twin import AT_ONCE_S, User, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

REMOTE = f"{REGISTRY}/site/picture:1"


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    if not images.registry_binary():
        reason = "no registry here. To enable this, as root: python -m tests.testbed.hosts install"
        pytest.fail(reason) if demanded() else pytest.skip(reason)
    testbed.up()
    images.clear(*testbed.hosts)
    yield testbed.hosts
    images.clear(*testbed.hosts)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User.at(tmp_path / "state")


def _publish(host: Host, name: str = REMOTE, content: str = "one") -> str:
    """Put a new image into the registry under the name, and forget it here; its digest."""
    images.make(host, name, content=content)
    pushed = host.run("docker", "push", name)
    found = re.search(r"digest: (sha256:[0-9a-f]{64})", pushed)
    assert found
    host.run("docker", "rmi", name)
    return found[1]


def test_a_tag_is_pulled_and_the_pin_is_told(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    head, _ = hosts
    with images.registry(tmp_path):
        digest = _publish(head)
        done = user.invoke("pull", IMAGE=REMOTE)
        first = look(head, REMOTE)
        assert first is not None
        assert done.code == 0, done.err
        assert f"pulled {REGISTRY}/site/picture@{digest}, identity {first.short}, 0.06 GB\n" in done.err
        pin = f"which its owner can move to another build; to keep this one: IMAGE={REGISTRY}/site/picture@{digest}\n"
        assert f"note: IMAGE={REMOTE} names a tag, {pin}" in done.err

        head.run("docker", "tag", REMOTE, "kept:1")
        _publish(head, content="moved")  # the tag is somebody else's to move
        head.run("docker", "tag", "kept:1", REMOTE)
        head.run("docker", "rmi", "kept:1")
        again = user.invoke("pull", IMAGE=REMOTE)
        assert again.code == 0, again.err
        assert (look(head, REMOTE) or first).identity != first.identity
        assert f"note: the image that had this name before is still there: docker tag {first.id} {REMOTE}-former\n" in again.err


def test_a_digest_is_pulled_once_and_reaches_the_worker(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """A loaded image has no digest: both nodes call it by the tag that is made of the digest."""
    head, worker = hosts
    with images.registry(tmp_path):
        digest = _publish(head)
        name = f"{REGISTRY}/site/picture@{digest}"
        tag = f"{REGISTRY}/site/picture:pinned-{digest[7:23]}"
        assert user.invoke("pull", IMAGE=name).code == 0
        pulled = look(head, tag)
        assert pulled is not None
        assert pulled.digests == (name,)
        again = user.invoke("pull", IMAGE=name)
        assert (again.code, "pulling" in again.err, f"{tag} stays: it is the image of that digest" in again.err) == (0, False, True)
        shipped = user.invoke("ship", IMAGE=name)
        assert shipped.code == 0, shipped.err
        arrived = look(worker, tag)
        assert arrived is not None
        assert (arrived.identity, arrived.digests) == (pulled.identity, ())


def test_what_cannot_be_pulled(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    head, _ = hosts
    with images.registry(tmp_path):
        _publish(head)
        missing = user.invoke("pull", IMAGE=f"{REGISTRY}/site/picture:none")
        unknown = user.invoke("pull", IMAGE=f"{REGISTRY}/site/none:1")
    refused(missing, f"head: {REGISTRY} has no {REGISTRY}/site/picture:none", "manifest", "check name, tag and digest", within_s=AT_ONCE_S)
    refused(unknown, f"head: {REGISTRY} has no {REGISTRY}/site/none:1", within_s=AT_ONCE_S)
    gone = user.invoke("pull", IMAGE=f"{REGISTRY}/site/picture:2")
    refused(gone, f"head: {REGISTRY} was not reached", "connection refused", "ship --archive FILE.tar", within_s=AT_ONCE_S)
    for name in (NAME, "spark-lab/glm:1"):
        local = user.invoke("pull", IMAGE=name)
        refused(local, f"IMAGE={name} is a name for images that are made here", "invoke build", within_s=AT_ONCE_S, code=2)


def test_without_the_registry_the_image_that_is_there_stays(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    head, _ = hosts
    with images.registry(tmp_path):
        digest = _publish(head)
        assert user.invoke("pull", IMAGE=REMOTE).code == 0
    there = look(head, REMOTE)
    assert there is not None
    done = user.invoke("pull", IMAGE=REMOTE)
    assert done.code == 0, done.err
    assert f"was not reached; the image that is there stays, identity {there.short}: nobody knows" in done.err
    mirrored = user.invoke("pull", IMAGE=f"ghcr.io/site/picture@{digest}")  # the same digest, under another name
    assert mirrored.code == 0, mirrored.err
    assert "stays" in mirrored.err
    assert "it has that digest" in mirrored.err
    assert (look(head, f"ghcr.io/site/picture:pinned-{digest[7:23]}") or there).id == there.id
    assert look(head, f"ghcr.io/site/picture:pinned-{digest[7:23]}") is not None


def test_a_pull_never_replaces_what_this_checkout_built(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """The registry has an older build under the same name (C2 of the field reports)."""
    head, _ = hosts
    checkout = Checkout.make(tmp_path / "checkout", f"ARG BASE={image.TAG}\nFROM $BASE\nCOPY overlay /opt/overlay\n")
    with images.registry(tmp_path):
        _publish(head)
        assert checkout.invoke("build", IMAGE=REMOTE).code == 0
        built = look(head, REMOTE)
        assert built is not None
        done = checkout.invoke("pull", IMAGE=REMOTE)
        assert done.code == 0, done.err
        assert f"head: {REMOTE} stays: it was built from this checkout (identity {built.short}); --force" in done.err
        assert (look(head, REMOTE) or built).id == built.id
        (checkout.root / "overlay/patch.py").write_text("two = 2\n")  # now it is nothing of this checkout's
        assert checkout.invoke("pull", IMAGE=REMOTE).code == 0
        assert (look(head, REMOTE) or built).id != built.id


def test_ship_by_a_registry(user: User, hosts: tuple[Host, ...], tmp_path: Path) -> None:
    head, worker = hosts
    source, former = images.make(head), images.make(worker, content="two")
    down = user.invoke("ship", IMAGE=NAME, REGISTRY=REGISTRY)
    refused(down, f"head: {REGISTRY} was not reached (REGISTRY)", "ran: docker push", within_s=60)
    assert (look(worker) or former).id == former.id
    with images.registry(tmp_path):
        done = user.invoke("ship", IMAGE=NAME, REGISTRY=REGISTRY)
        assert done.code == 0, done.err
        assert f"head: pushing picture:1 to {REGISTRY}\n" in done.err
        assert "sending" not in done.err
    arrived = look(worker)
    assert arrived is not None
    assert arrived.identity == source.identity
    assert images.names(head) == images.names(worker) == {image.TAG, NAME}
    stored = json.dumps([path.name for path in (tmp_path / "data").rglob("repositories/*/*")])
    assert "ship" in stored
