"""What the twin kit needs to serve EXL3 experts: vLLM with this checkout's plugin, and two models that must answer alike.

    python -m tests.testbed.exl3        # make it if it is not there, print its folder

The plugin is installed as in the image: `pip install --no-deps` into an environment that has vLLM, found by its entry point. Here that
environment lies over the testbed's own, which stays without it and serves the dense model.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed import vllm_env
from tests.testbed.shell import ENV, How, run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = vllm_env.CACHE / "exl3"
PACKED, DENSE = FOLDER / "models/exl3", FOLDER / "models/dense"
# the guard is needed: workers that are spawned run this file, too
VLLM = 'import sys\nfrom vllm.entrypoints.cli.main import main\nif __name__ == "__main__":\n    sys.exit(main())\n'
SETTINGS = {"IMAGE_ENTRYPOINT": str(FOLDER / "bin/vllm"), "MODEL": str(PACKED), "QUANTIZATION": "exl3"}

PROMPTS = ([7, 101, 33, 250, 12, 400], list(range(300, 340)))
NEAR = 5e-5  # of log-probabilities: fp32 in another order (3e-6 seen)


def recipe_hash() -> str:
    """Changes with vLLM, the plugin and whatever the models are made by."""
    files = [*(ROOT / "overlay").rglob("*.py"), ROOT / "overlay/pyproject.toml", ROOT / "tests/overlay/models.py"]
    files += [ROOT / "tests/testbed/model.py", Path(__file__)]
    digest = hashlib.sha256(vllm_env.recipe_hash().encode())
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()


def ensure(folder: Path = FOLDER) -> Path:
    """Make `folder` (half a minute, 15 MB) unless this checkout's is there. Raises TestbedError if a step fails."""
    stamp = folder / "finished"
    if not stamp.exists() or stamp.read_text() != recipe_hash():
        shutil.rmtree(folder, ignore_errors=True)
        _environment(folder)
        words = [str(folder / "bin/python"), "-m", "tests.overlay.models", str(folder / "models")]
        run(["env", "-C", str(ROOT), *words], "make the EXL3 model and its dense twin", How(timeout_s=300, env=ENV | vllm_env.CPU_ENV))
        stamp.write_text(recipe_hash())
    return folder


def _environment(folder: Path) -> None:
    vllm = vllm_env.ensure()
    run([str(vllm_env.BASE_PYTHON), "-m", "venv", str(folder)], f"make a virtual environment in {folder}", How(timeout_s=300))
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "vllm.pth").write_text(f"{next(vllm.folder.glob('lib/python3*/site-packages'))}\n")
    with tempfile.TemporaryDirectory() as copy:  # pip leaves a build folder in what it installs from
        shutil.copytree(ROOT / "overlay", copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        words = [str(folder / "bin/python"), "-m", "pip", "-q", "install", "--no-deps", copy]
        settings = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        run(words, "install the plugin", How(timeout_s=300, env=ENV | settings))
    (folder / "bin/vllm").write_text(f"#!{folder}/bin/python\n{VLLM}")
    (folder / "bin/vllm").chmod(0o755)


# --- what a server says ---


@dataclass(frozen=True)
class Answer:
    """Greedy token ids, each one's log-probability, and its lead over the second best."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]


def ask(url: str, model: str, prompt: list[int]) -> Answer:
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    by_id = {"return_token_ids": True, "return_tokens_as_token_ids": True}  # several of these tokens have the same text
    choice = post(f"{url}/v1/completions", {**body, **by_id})["choices"][0]
    best = [sorted(step.values(), reverse=True) for step in choice["logprobs"]["top_logprobs"]]
    return Answer(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]), tuple(row[0] - row[1] for row in best))


def post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


if __name__ == "__main__":
    print(ensure())
    sys.exit()
