"""`invoke build` on the head's real dockerd, without a network: only when the sources changed, and never over a stranger's name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.images.identity import STAMP
from tests.testbed import image, images, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import Checkout, look
from tests.testbed.twin import AT_ONCE_S, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

DOCKERFILE = f"""\
ARG BASE={image.TAG}
FROM $BASE
COPY overlay /opt/overlay
RUN cat /opt/overlay/patch.py
"""
NAME = "spark-lab/glm:test"


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    testbed.up()
    images.clear(*testbed.hosts)
    yield testbed.hosts
    images.clear(*testbed.hosts)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout.make(tmp_path / "checkout", DOCKERFILE)
    return Checkout(made.root, {**made.env, "IMAGE": NAME})


def test_built_only_when_the_sources_changed(checkout: Checkout, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    done = checkout.invoke("build")
    assert done.code == 0, done.err
    first = look(head, NAME)
    assert first is not None
    assert first.stamp is not None
    assert f"head: building {NAME} from 2 files" in done.err
    assert f"built {NAME}: identity {first.short}, 2 layers" in done.err
    assert images.names(head) == {image.TAG, NAME}
    assert images.names(worker) == {image.TAG}
    labels = head.run("docker", "image", "inspect", "--format", '{{index .Config.Labels "org.opencontainers.image.base.name"}}', NAME)
    assert labels == f"{image.TAG}\n"
    (log,) = head.path(f"{twin.STATE}/logs").glob("*-image-build.log")
    assert "one = 1" in log.read_text()
    content = head.run("docker", "run", "--rm", "--network", "host", NAME, "cat", "/opt/overlay/patch.py")
    assert content == "one = 1\n"

    again = checkout.invoke("build")
    built = f"head: {NAME} is built from these sources already (stamp {first.stamp}, identity {first.short})\n"
    assert (again.code, again.err) == (0, built)
    (checkout.root / "overlay/__pycache__").mkdir()
    (checkout.root / "overlay/__pycache__/patch.pyc").write_bytes(b"x")
    assert "already" in checkout.invoke("build").err

    (checkout.root / "overlay/patch.py").write_text("two = 2\n")
    changed = checkout.invoke("build")
    second = look(head, NAME)
    assert second is not None
    assert (changed.code, second.stamp != first.stamp, second.identity != first.identity) == (0, True, True)
    assert look(head, first.id) is not None  # nothing was removed
    log.unlink()


def test_a_stranger_s_name_is_not_taken(checkout: Checkout, hosts: tuple[Host, ...]) -> None:
    head, _ = hosts
    stranger = images.make(head, NAME)
    done = checkout.invoke("build")
    refused(done, f"head: {NAME} on this node was not built by this tool", f"no label {STAMP}", "--force", within_s=AT_ONCE_S, code=2)
    assert (look(head, NAME) or stranger).id == stranger.id
    forced = checkout.invoke("build", "--force")
    assert forced.code == 0, forced.err
    assert (look(head, NAME) or stranger).id != stranger.id


def test_a_failed_build_changes_no_name(checkout: Checkout, hosts: tuple[Host, ...]) -> None:
    head, _ = hosts
    assert checkout.invoke("build").code == 0
    before = look(head, NAME)
    assert before is not None
    (checkout.root / "Dockerfile").write_text(DOCKERFILE + "RUN echo the last words; exit 7\n")
    done = checkout.invoke("build")
    refused(done, f"head: the build of {NAME} failed (exit 7)", "the last words", "the whole log on that node: ", within_s=60)
    assert (look(head, NAME) or before).stamp == before.stamp
    assert images.names(head) == {image.TAG, NAME}


def test_the_base_can_be_a_local_name(checkout: Checkout, hosts: tuple[Host, ...]) -> None:
    """An air-gapped site has the base under a name of its own; a digest would be looked up in the network."""
    head, _ = hosts
    (checkout.root / "Dockerfile").write_text(DOCKERFILE.replace(image.TAG, f"ghcr.io/site/base@sha256:{'0' * 64}"))
    done = checkout.invoke("build")
    refused(done, f"head: the build of {NAME} failed", "BUILD_BASE=NAME:TAG", within_s=60)
    head.run("docker", "tag", image.TAG, "mirror/base:1")
    based = checkout.invoke("build", "--base", "mirror/base:1")
    assert based.code == 0, based.err
    again = checkout.invoke("build", BUILD_BASE="mirror/base:1")
    assert "is built from these sources already" in again.err


def test_what_cannot_be_built(checkout: Checkout, hosts: tuple[Host, ...]) -> None:
    fixed = checkout.invoke("build", IMAGE=f"ghcr.io/site/picture@sha256:{'0' * 64}")
    refused(fixed, "is a fixed image of a registry: a build cannot make it", within_s=AT_ONCE_S, code=2)
    (checkout.root / "Dockerfile").unlink()
    refused(checkout.invoke("build"), f"there is no Dockerfile in {checkout.root}", within_s=AT_ONCE_S)
    local = checkout.invoke("build", KIT="local")
    refused(local, "kit local runs without containers (RUNTIME=process): it needs no image", within_s=AT_ONCE_S, code=2)
