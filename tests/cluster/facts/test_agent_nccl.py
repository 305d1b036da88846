"""The agent reads NCCL libraries: real files here; images are read on the testbed (tests/testbed/test_doctor_deep.py)."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.facts.nccl import Nccl
from cluster.facts.node import read
from tests.cluster.facts.test_agent_facts import ask, request_, tool, tools

__all__ = ["request_", "tools"]  # fixtures
BUILD = b"\0NCCL version 2.30.7+cuda13.0\0NCCL_IB_SUBNET_AWARE_ROUTING\0NCCL version %s\0"
MARKS = ["SWITCHLESS_RING_ONLY", "NCCL_IB_SUBNET_AWARE_ROUTING"]


def look(request: dict[str, Any], **wanted: Any) -> Nccl:
    asked = {"image": None, "paths": [], "known": [], "host": None, "marks": MARKS, "limit_s": 25, **wanted}
    return read("local", ask({**request, "nccl": asked})).nccl


def test_a_venv_and_the_patched_library(request_: dict[str, Any], tmp_path: Path) -> None:
    """The version is NCCL's own, not the format string beside it; a link is followed."""
    at = tmp_path / "lib/python3.12/site-packages/nvidia/nccl/lib"
    at.mkdir(parents=True)
    (at / "libnccl.so.2").write_bytes(BUILD)
    (tmp_path / "patched.so.2.30.7").write_bytes(BUILD + b"SWITCHLESS_RING_ONLY")
    (tmp_path / "patched.so").symlink_to("patched.so.2.30.7")
    found = look(request_, paths=[f"{tmp_path}/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"], host=f"{tmp_path}/patched.so")
    assert found.libraries is not None
    (library,) = found.libraries
    assert (library.path, library.version, library.size_bytes) == (f"{at}/libnccl.so.2", "2.30.7+cuda13.0", len(BUILD))
    assert library.sha256 == hashlib.sha256(BUILD).hexdigest()
    assert library.marks == ("NCCL_IB_SUBNET_AWARE_ROUTING",)
    assert found.host is not None
    assert found.host.marks == ("NCCL_IB_SUBNET_AWARE_ROUTING", "SWITCHLESS_RING_ONLY")
    assert found.loaded == found.host


@pytest.mark.parametrize("shift", [-30, -12, -1, 0])
def test_words_across_the_ends_of_what_is_read_at_once(request_: dict[str, Any], tmp_path: Path, shift: int) -> None:
    """The file is read in pieces of 4 MiB; what lies over the seam is found all the same."""
    text = b"NCCL version 2.28.9+cuda13.0\0"
    (tmp_path / "lib.so").write_bytes(b"\0" * ((4 << 20) + shift) + text + b"\0" * ((4 << 20) - len(text) - 5) + b"SWITCHLESS_RING_ONLY")
    host = look(request_, host=f"{tmp_path}/lib.so").host
    assert host is not None
    assert (host.version, host.marks) == ("2.28.9+cuda13.0", ("SWITCHLESS_RING_ONLY",))


def test_a_patched_library_that_is_not_there_or_is_a_folder(request_: dict[str, Any], tmp_path: Path) -> None:
    """docker makes a folder of that name when it mounts what is not there."""
    absent = look(request_, host=f"{tmp_path}/none.so")
    assert (absent.host, absent.host_path, absent.host_problem) == (None, f"{tmp_path}/none.so", "No such file or directory")
    assert absent.loaded is None
    assert look(request_, host=str(tmp_path)).host_problem == "Is a directory"


def test_a_library_that_tells_no_version(request_: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"\x7fELF")
    host = look(request_, host=f"{tmp_path}/lib.so").host
    assert host is not None
    assert str(host) == "version unknown sha256 " + hashlib.sha256(b"\x7fELF").hexdigest()[:12]


def test_an_image_that_is_known_is_not_opened(request_: dict[str, Any], tools: Path, tmp_path: Path) -> None:
    tool(tools, "docker", f'echo "$1 $2" >> {tmp_path}/asked; case "$1 $2" in "image inspect") echo sha256:77;; *) exit 1;; esac')
    assert look(request_, image="x:1", known=["sha256:77"]).libraries is None
    assert "create" not in (tmp_path / "asked").read_text()
    unknown = look(request_, image="x:1", known=["sha256:78"])
    assert (unknown.libraries, unknown.problem) == (None, "docker create x:1 failed")
    assert "create --pull=never" in (tmp_path / "asked").read_text()


def test_without_docker(request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look(request_, image="x:1").problem == "docker cannot be called (FileNotFoundError)"


@pytest.mark.parametrize("slow", ["create", "cp"])
def test_a_docker_that_is_slow_costs_its_limit_and_leaves_nothing(request_: dict[str, Any], tools: Path, tmp_path: Path, slow: str) -> None:
    """An answer that came too late is not taken for "no such file"; the container is removed all the same."""
    script = (
        f'echo "$*" >> {tmp_path}/asked; case "$1" in {slow}) exec sleep 30;; image) echo sha256:77;; create) echo made;; cp) exit 1;; esac'
    )
    tool(tools, "docker", script)
    begin = time.monotonic()
    found = look(request_, image="x:1", paths=["/a/libnccl.so.2", "/b/libnccl.so.2"], limit_s=2)
    assert time.monotonic() - begin < 14
    assert (found.libraries, found.problem) == (None, "reading it out of the image took longer than 2 s")
    assert ("rm --force made" in (tmp_path / "asked").read_text()) is (slow == "cp")
