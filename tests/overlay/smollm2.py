"""SmolLM2-135M as a folder of safetensors, converted from the GGUF that the local kit serves: a Llama with real weights, 9 heads.

    python -m tests.overlay.smollm2 [FOLDER]      # prints the folder; 20 s and 0.5 GB the first time

The folder is kept beside the testbed's other models; it is made anew when the GGUF is another.
"""

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

from cluster import weights
from tests.testbed.vllm_env import CACHE

FOLDER = CACHE / "smollm2-135m"
STAMP = "converted.json"


def ensure(folder: Path = FOLDER) -> Path:
    """The folder: fp32 weights, config, tokenizer. The GGUF is downloaded if it is not here; two calls at once convert it once."""
    made = {"from": weights.SMOLLM2.sha256, "dtype": "float32", "tokenizer": True}
    stamp = folder / STAMP
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or json.loads(stamp.read_text()) != made:
            _convert(weights.fetch(weights.SMOLLM2, say), folder)
            stamp.write_text(json.dumps(made))
    return folder


def say(line: str) -> None:
    """Not on stdout, whose last word is the folder."""
    print(line, file=sys.stderr)


def _convert(gguf: Path, folder: Path) -> None:
    """Into a folder beside it first: one that is there is whole."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = model.config.to_dict() | {"dtype": "float32"}
    config.pop("quantization_config", None)
    begun = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}  # tied
    save_file(tensors, begun / "model.safetensors", metadata={"format": "pt"})
    (begun / "config.json").write_text(json.dumps(config, indent=1))
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(begun)
    shutil.rmtree(folder, ignore_errors=True)
    begun.rename(folder)


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
