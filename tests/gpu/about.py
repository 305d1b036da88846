"""What a receipt says about where it was made."""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

PACKAGES = ("vllm", "torch", "triton", "transformers", "tilelang", "vllm-glm-exl3")


def environment() -> dict[str, object]:
    return {
        "devices": _devices(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "plugin_sha256": _plugin(),
        "exllamav3_ext_sha256": _sha256("exllamav3_ext"),
        "settings": {name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "EXL3_", "OLDER_TORCH"))},
        "command": " ".join(["python", "-m", "tests.gpu.engine_checks", *sys.argv[1:]]),
        "when_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def gpus() -> int:
    return len(_devices())


def _devices() -> list[str]:
    words = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _sha256(module: str) -> str:
    found = importlib.util.find_spec(module)
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest() if found and found.origin else "absent"


def _plugin() -> str:
    """Over the plugin's Python files in the order of their names: which of its versions ran."""
    found = importlib.util.find_spec("vllm_glm_exl3")
    if not found or not found.origin:
        return "absent"
    folder = Path(found.origin).parent
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*.py"))
    return hashlib.sha256(b"".join(name.encode() + (folder / name).read_bytes() for name in files)).hexdigest()
