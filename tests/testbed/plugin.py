"""This checkout's plugin where the testbed's hosts see it, with the tiny model in EXL3, its dense twin with edited attention, and the
direction of that edit.

    python -m tests.testbed.plugin        # make it, print its folder (half a minute, 20 MB)
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.testbed import vllm_env
from tests.testbed.shell import ENV, How, run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = vllm_env.CACHE / "plugin"
LAYERS = (0, 1)
# run by vLLM's Python with the plugin: both models from one seed, and the edit of the dense one
MAKE = """
import sys
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from tests.overlay import models
from vllm_glm_exl3.ablation import direction, formula
folder = Path(sys.argv[1])
packed, dense = models.make_twins(folder / "models")
file = dense / "model.safetensors"
tensors = load_file(file)
names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1)]
made = torch.Generator().manual_seed(11)
r = direction.write(folder / "direction.safetensors", torch.randn(tensors[names[0]].shape[0], generator=made), {"model": "tiny"})
save_file(tensors | {name: formula.project(tensors[name], r.vectors, 3.0) for name in names}, file, metadata={"format": "pt"})
"""


def recipe_hash() -> str:
    """Changes with vLLM, the plugin and whatever the models are made by."""
    files = [*(ROOT / "overlay").rglob("*.py"), ROOT / "overlay/pyproject.toml", ROOT / "tests/overlay/models.py"]
    digest = hashlib.sha256(vllm_env.recipe_hash().encode())
    for file in sorted([*files, ROOT / "tests/testbed/model.py", Path(__file__)]):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def ensure(folder: Path = FOLDER) -> Path:
    """Make `folder` unless this checkout's is there: site/ (for PYTHONPATH), models/exl3, models/dense, direction.safetensors."""
    stamp = folder / "finished"
    if not stamp.exists() or stamp.read_text() != recipe_hash():
        shutil.rmtree(folder, ignore_errors=True)
        python = vllm_env.ensure().python
        with tempfile.TemporaryDirectory() as copy:  # pip leaves a build folder in what it installs from
            shutil.copytree(ROOT / "overlay", copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
            words = [str(python), "-m", "pip", "-q", "install", "--no-deps", "--target", str(folder / "site"), copy]
            settings = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
            run(words, "install the plugin", How(timeout_s=300, env=ENV | settings))
        path = {"PYTHONPATH": f"{ROOT}:{folder / 'site'}"}
        run([str(python), "-c", MAKE, str(folder)], "make the models", How(timeout_s=300, env=ENV | vllm_env.CPU_ENV | path))
        stamp.write_text(recipe_hash())
    return folder


if __name__ == "__main__":
    print(ensure())
    sys.exit()
