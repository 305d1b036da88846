"""The launcher on the head itself, as on Sparks: the pipe is its own; and a launch without a network from copied weights."""

import json
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed import image, images, model, twin, vllm_env
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.images import NAME, SERVED, look
from tests.testbed.shell import How
from tests.testbed.twin import User

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hosts(testbed: Testbed) -> Iterator[tuple[Host, ...]]:
    testbed.up()
    images.clear(*testbed.hosts)
    yield testbed.hosts
    images.clear(*testbed.hosts)


def test_ship_from_the_head(testbed: Testbed, hosts: tuple[Host, ...]) -> None:
    head, worker = hosts
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if head.attempt(f"/usr/bin/python{version}", "--version").status or head.attempt("test", "-e", str(twin.ROOT / "tasks.py")).status:
        pytest.skip(f"the hosts have no Python {version}, or do not see {twin.ROOT}")
    source, former = images.make(head), images.make(worker, content="two")
    settings = {"KIT": "twin", "IMAGE": NAME, "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONDONTWRITEBYTECODE": "1"}
    line = f"cd {twin.ROOT} && exec env {' '.join(f'{n}={v}' for n, v in settings.items())} /usr/bin/python{version} -m invoke ship"
    done = head.attempt("sh", "-c", line, how=How(timeout_s=90))
    assert done.status == 0, done.stderr
    assert "head: sending picture:1" in done.stderr
    assert "through this machine" not in done.stderr
    assert (look(worker) or former).identity == source.identity
    assert images.names(head) == images.names(worker) == {image.TAG, NAME}


def test_copied_weights_and_a_loaded_image_need_no_network(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """docs/air-gapped.md: an archive on the head, a hub folder copied to both; no host has a way out."""
    head, _ = hosts
    source = vllm_env.CACHE / "tiny-qwen3-moe"
    if not (source / "model.safetensors").exists():
        model.make()
    repository = "hub/models--site--tiny"
    for host in hosts:
        (host.path(f"/root/hf/{repository}/blobs")).mkdir(parents=True)
        snapshot = host.path(f"/root/hf/{repository}/snapshots/{REVISION}")
        snapshot.mkdir(parents=True)
        for file in source.iterdir():
            shutil.copy(file, host.path(f"/root/hf/{repository}/blobs/{file.name}"))
            (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    images.make(head)
    head.run("docker", "save", "--output", "/tmp/picture.tar", NAME)
    head.run("docker", "rmi", NAME)
    caches = {"HEAD_HF_HOME": "/root/hf", "WORKER_HF_HOME": "/root/hf", "HF_HUB_OFFLINE": "1"}
    user = User(
        {
            **User.at(tmp_path).env,
            **SERVED,
            **caches,
            "IMAGE": NAME,
            "SKIP_DOWNLOAD": "0",
            "SKIP_SYNC": "0",
            "MODEL": "site/tiny",
            "MODEL_REVISION": REVISION,
        }
    )
    try:
        assert user.invoke("ship", "--archive", "/tmp/picture.tar").code == 0
        up = user.invoke("up")
        assert up.code == 0, up.err
        size = (source / "model.safetensors").stat().st_size
        served = f"/root/.cache/huggingface/{repository}/snapshots/{REVISION}"
        for host, name in zip(hosts, twin.NAMES, strict=True):
            assert host.run("docker", "logs", name).splitlines()[0] == f"offline 1 bytes {size}"
            assert served in json.loads(host.run("docker", "inspect", "--format", "{{json .Args}}", name))
        assert user.invoke("down").code == 0
    finally:
        twin.clear(hosts)
        for host in hosts:
            shutil.rmtree(host.path("/root/hf"))
        head.path("/tmp/picture.tar").unlink()
