"""The reference of an edit at load, without vLLM and without the plugin's formula: transformers in fp32 on the checkpoint edited here.

    python -m tests.overlay.offline CASE_AS_JSON OUT.json

CASE is {"model": FOLDER, "direction": FILE, "layers": [...], "alpha": 2.0, "rows": [[prompt ids, answer ids], ...]}. OUT gets "stock" and
"edited": for each row and each token of its answer the [id, log-probability] pairs of the five best at that place, best first.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def edit(weight: Tensor, direction: Tensor, alpha: float) -> Tensor:
    """W - alpha r (r^T W) / (r^T r), in double precision, rounded once."""
    w, r = weight.double(), direction.double()
    return (w - alpha * torch.outer(r, r @ w) / torch.dot(r, r)).to(weight.dtype)


def best(model: Any, prompt: list[int], answer: list[int]) -> list[list[tuple[int, float]]]:
    """At the place of each token of the answer: one forward pass over all that was served."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    values, ids = torch.log_softmax(logits.double(), -1).topk(5)
    return [list(zip(row.tolist(), value.tolist(), strict=True)) for row, value in zip(ids, values, strict=True)]


def main(case: dict[str, Any], out: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32, attn_implementation="eager")
    stock = [best(model, prompt, answer) for prompt, answer in case["rows"]]
    direction = load_file(case["direction"])["direction"]
    for number in case["layers"]:
        o_proj = model.model.layers[number].self_attn.o_proj.weight
        o_proj.data = edit(o_proj.data, direction, case["alpha"])
    edited = [best(model, prompt, answer) for prompt, answer in case["rows"]]
    out.write_text(json.dumps({"stock": stock, "edited": edited}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
