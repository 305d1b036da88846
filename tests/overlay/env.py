"""An environment for these tests: pytest and the plugin of this checkout beside the testbed's real vLLM, which is left as it is.

python -m tests.overlay.env        # make it if it is not there, print its Python
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.testbed import vllm_env

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("pytest", "pytest-timeout")
GGUF = ("gguf==0.19.0", "accelerate")  # to convert the local kit's model; what they need is there


def ensure(folder: Path = ROOT / "build/overlay-tests") -> Path:
    """The environment's Python. Makes vLLM's environment first, if there is none (3 to 10 minutes); two calls at once make it once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _ensured(folder)


def _ensured(folder: Path) -> Path:
    python = folder / "bin/python"
    stamp = folder / "finished"
    if not stamp.exists() or stamp.read_text() != " ".join(NEEDED + GGUF):
        vllm = vllm_env.ensure()
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([str(vllm_env.BASE_PYTHON), "-m", "venv", str(folder)], check=True)
        site = next(folder.glob("lib/python3*/site-packages"))
        (site / "vllm.pth").write_text(f"{next(vllm.folder.glob('lib/python3*/site-packages'))}\n")
        _pip(python, *NEEDED)
        _pip(python, "--no-deps", *GGUF)
        _pip(python, "--no-deps", "--editable", str(ROOT / "overlay"))
        stamp.write_text(" ".join(NEEDED + GGUF))
    return python


def _pip(python: Path, *words: str) -> None:
    subprocess.run([str(python), "-m", "pip", "-q", "install", *words], check=True, env=dict(os.environ))


if __name__ == "__main__":
    print(ensure())
    sys.exit()
