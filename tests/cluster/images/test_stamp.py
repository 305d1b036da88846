"""What a build is made from: the stamp changes with the sources and with nothing else."""

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from cluster.errors import LaunchError
from cluster.images import stamp
from cluster.images.build import movable
from cluster.settings import ROOT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "overlay/sub").mkdir(parents=True)
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "overlay/a.py").write_text("a\n")
    (tmp_path / "overlay/sub/run.sh").write_text("b\n")
    (tmp_path / "overlay/sub/run.sh").chmod(0o755)
    (tmp_path / "README.md").write_text("not part of a build\n")
    return tmp_path


@pytest.fixture
def repository(root: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    (root / ".gitignore").write_text("*.log\n")
    return root


def of(root: Path) -> str:
    return stamp.stamp(stamp.sources(root))


def test_the_stamp_by_hand(root: Path) -> None:
    digests = [hashlib.sha256(content).hexdigest() for content in (b"FROM x\n", b"a\n", b"b\n")]
    text = f'["Dockerfile", false, "{digests[0]}"]["overlay/a.py", false, "{digests[1]}"]["overlay/sub/run.sh", true, "{digests[2]}"]'
    assert of(root) == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert stamp.current(root) == of(root)


def test_what_changes_it(root: Path) -> None:
    seen = [of(root)]
    (root / "overlay/a.py").write_text("b\n")
    seen.append(of(root))
    (root / "overlay/a.py").chmod(0o755)
    seen.append(of(root))
    (root / "overlay/a.py").rename(root / "overlay/b.py")
    seen.append(of(root))
    (root / ".dockerignore").write_text("*.md\n")
    seen.append(of(root))
    seen.append(stamp.stamp(stamp.sources(root), "mirror/base:1"))
    assert len(set(seen)) == 6


@pytest.mark.parametrize("git", [False, True])
def test_what_does_not_change_it(root: Path, git: bool) -> None:
    if git:
        subprocess.run(["git", "init", "--quiet", str(root)], check=True)
        (root / ".gitignore").write_text("__pycache__/\n*.egg-info/\n")
    before = of(root)
    os.utime(root / "overlay/a.py", (1, 1))
    (root / "overlay/a.py").chmod(0o664)
    (root / "README.md").write_text("changed")
    (root / "overlay/__pycache__").mkdir()
    (root / "overlay/__pycache__/a.pyc").write_bytes(b"x")
    (root / "overlay/x.egg-info").mkdir()
    (root / "overlay/x.egg-info/PKG").write_bytes(b"x")
    assert of(root) == before


def test_git_decides_what_belongs(repository: Path) -> None:
    before = of(repository)
    (repository / "overlay/run.log").write_text("ignored")
    assert of(repository) == before
    (repository / "overlay/build").mkdir()
    (repository / "overlay/build/new.py").write_text("not ignored, not yet added")
    assert sorted(stamp.sources(repository)) == ["Dockerfile", "overlay/a.py", "overlay/build/new.py", "overlay/sub/run.sh"]


def test_a_file_that_git_knows_and_is_gone(repository: Path) -> None:
    subprocess.run(["git", "-C", str(repository), "add", "-A"], check=True)
    (repository / "overlay/a.py").unlink()
    assert sorted(stamp.sources(repository)) == ["Dockerfile", "overlay/sub/run.sh"]


def test_the_tar_holds_the_stamped_files_and_is_the_same_each_time(root: Path) -> None:
    whole = stamp.tar(stamp.sources(root))
    os.utime(root / "overlay/a.py", (1, 1))
    assert stamp.tar(stamp.sources(root)) == whole
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        seen = [(entry.name, entry.mode, entry.uid, entry.mtime) for entry in archive]
        content = archive.extractfile("overlay/sub/run.sh")
        assert content is not None
        assert content.read() == b"b\n"
    assert seen == [("Dockerfile", 0o644, 0, 0), ("overlay/a.py", 0o644, 0, 0), ("overlay/sub/run.sh", 0o755, 0, 0)]


def test_no_dockerfile(root: Path) -> None:
    (root / "Dockerfile").unlink()
    assert stamp.current(root) is None
    with pytest.raises(LaunchError, match="there is no Dockerfile in"):
        stamp.sources(root)


def test_too_much_beside_it(root: Path) -> None:
    with (root / "overlay/weights.bin").open("wb") as file:
        file.truncate(64 << 20)
    with pytest.raises(LaunchError, match=r"larger than 64 MiB \(at overlay/weights.bin\)"):
        stamp.sources(root)


def test_the_base_of_a_build(root: Path) -> None:
    assert stamp.base_of(stamp.sources(root)) is None
    (root / "Dockerfile").write_text("# ARG BASE=comment\nARG CPU_BASE=other:1\nARG BASE=site/vllm:v1\nFROM ${BASE}\n")
    found = stamp.sources(root)
    assert stamp.base_of(found) == "site/vllm:v1"
    assert stamp.base_of(found, "mirror/base:2") == "mirror/base:2"
    own = stamp.base_of(stamp.sources(ROOT))
    assert own is not None
    assert own.startswith("nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:")
    assert movable(own) is None


def test_a_base_that_may_move_is_named() -> None:
    said = movable("site/vllm:v1")
    assert said is not None
    assert "BUILD_BASE=site/vllm:v1@sha256:" in said
    assert [movable(base) for base in (None, "deb:1", "spark-lab/base:1", "site/vllm:v1@sha256:" + "0" * 64)] == [None] * 4
