"""A kit of one testbed host that serves SmolLM2-135M in fp32 through real vLLM with this checkout's plugin: a model that can be measured
in process too.

    python -m tests.testbed.solo        # make the model's folder if it is not there, print it

The kit is no part of the repository: it is one more file in the kits/ of a copy of the code, as a user would add it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cli import lab_env
from cluster import weights
from tests.testbed import cpu_image, twin, vllm_env

ROOT = twin.ROOT
MODEL = vllm_env.CACHE / "smollm2-chat"
DRAFTING = vllm_env.CACHE / "ngram"  # the hosts see it
DRAFTS = 4  # tokens drafted per step
PORT = 18889
KIT = f"""\
name = "solo"
summary = "one testbed host, SmolLM2-135M in real vLLM on the CPU, TP 1"
engine = "vllm"
hardware = "cpu"
topology = "pair"
nodes = ["head"]

[settings]
HOST = "0.0.0.0"
PORT = {PORT}
SERVED_MODEL_NAME = "smollm2"
SSH_CONFIG = "/var/lib/spark-testbed/ssh_config"
HEAD_IP = "10.77.0.1"
HEAD_CX7_IF = "eth0"
IMAGE = "{cpu_image.NAME}"
IMAGE_ENTRYPOINT = "{vllm_env.CACHE}/vllm-0.32/bin/vllm"
EXTRA_MOUNTS = "/usr:/usr:ro {vllm_env.CACHE}:{vllm_env.CACHE}:ro"
MODEL = "{MODEL}"
QUANTIZATION = ""
KV_CACHE_DTYPE = "auto"
MAX_MODEL_LEN = 1024
MAX_NUM_BATCHED_TOKENS = 1024
LANGUAGE_MODEL_ONLY = 1
LIMIT_MM = ""
MM_IMAGE_TOKENS = ""
TOOL_CALL_PARSER = ""
REASONING_PARSER = ""
ENFORCE_EAGER = 1
PYTORCH_CUDA_ALLOC_CONF = ""
EXTRA_ARGS = "--dtype float32"
GLM53_EXTRA_ENV = "HOME=/tmp VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind"
READY_TIMEOUT = 300
"""


def model(folder: Path = MODEL) -> Path:
    """The local kit's model as safetensors with tokenizer and chat template, where the hosts see it. The very files that the lab uses."""
    gguf = weights.fetch(weights.SMOLLM2, print)
    words = [str(lab_env.ensure()), "-m", "bench.kld.local", "--gguf", str(gguf), "--out", "/dev/null", "--convert-only"]
    done = subprocess.run(words, cwd=ROOT, env=lab_env.environment(), capture_output=True, text=True, timeout=400, check=True)
    made = Path(done.stdout.splitlines()[-1])
    if not folder.exists() or _provenance(folder) != _provenance(made):
        begun = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(begun, ignore_errors=True)
        shutil.copytree(made, begun)
        (begun / "model.safetensors").chmod(0o644)
        shutil.rmtree(folder, ignore_errors=True)
        begun.rename(folder)
    return folder


def drafting(folder: Path = DRAFTING) -> dict[str, str]:
    """Settings of the kit with which vLLM drafts by n-gram lookup, so that a real server has counters of speculation. The launcher has no
    such setting for vLLM: a command of our own adds the flag, and has a python3 beside it as the launcher's selfcheck wants."""
    config = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    own = vllm_env.CACHE / "vllm-0.32/bin"
    scripts = {
        "vllm": f"exec {own}/vllm \"$@\" --speculative-config '{json.dumps(config)}'",
        "python3": f'exec {own}/python3 "$@"',
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return {"IMAGE_ENTRYPOINT": str(folder / "vllm")}


def _provenance(folder: Path) -> Any:
    return json.loads((folder / "provenance.json").read_text())


def user(folder: Path) -> twin.User:
    """Somebody whose copy of the code has the kit."""
    return twin.User.with_kit(folder, "solo", KIT)


if __name__ == "__main__":
    print(model())
