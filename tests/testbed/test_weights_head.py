"""The head's own disk fills up during a download. Needs root for a small file system, no hosts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support import ROOT, eventually
from tests.cluster.weights.person import Head
from tests.fakes.hub import Hub
from tests.fakes.snapshot import model_files
from tests.testbed.conftest import demanded

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(120)]

SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A cache of 330 MiB: room for 64 MiB and what is kept free."""
    if os.geteuid() != 0 and not demanded():
        pytest.skip("needs root")
    folder = tmp_path / "hf"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=330m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_the_disk_fills_up_during_the_download(small: Path, tmp_path: Path) -> None:
    with Hub(model_files(shards=1, shard_bytes=64 << 20), slow_s=0.1).serving() as hub:
        head = Head(tmp_path, hub)
        command, env = head.command(HF_HOME=str(small))
        with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
            eventually(lambda: list(small.rglob("*.incomplete")), within_s=30)
            subprocess.run(["dd", "if=/dev/zero", f"of={small}/filler", "bs=1M"], capture_output=True, check=False)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "error: the disk of the cache is full\n" in err
        assert "try: df -h; files that arrived whole are kept, and the next download goes on" in err
        assert list(small.rglob("*.incomplete")) == []
        assert not (small / "hub/models--lab--tiny/snapshots" / hub.revision / SHARD).exists()
        (small / "filler").unlink()
        hub.slow_s = 0
        again = head.download(HF_HOME=str(small))
    assert (again.code, "downloading 1 of 5 files" in again.err) == (0, True), again.err


def test_a_disk_too_small_is_found_before_the_download(small: Path, tmp_path: Path) -> None:
    with Hub(model_files(shards=1, shard_bytes=100 << 20)).serving() as hub:
        done = Head(tmp_path, hub).download(HF_HOME=str(small))
    assert done.code == 1
    assert f"more must be free at {small}: 100.0 MiB are to come" in done.err
    assert not [path for path in hub.paths() if "/resolve/" in path]
