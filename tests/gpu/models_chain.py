"""A tiny GLM-5.3-Flash whose drafts are accepted now and then, prompts for it, and what each edit at load must make of its weights.

    python -m tests.gpu.models_chain FOLDER          # needs torch (a CPU is enough), transformers >= 5.19 and vllm_glm_exl3 on the path
    python -m tests.gpu.models_chain FOLDER derive   # only what is made from glm-exl3

Answers stay within CLOSED, a ring of tokens. The head prefers each token's successor there, and what the layers make of all earlier tokens
decides otherwise now and then. A drafter that always says the successor is right at some places and wrong at others, and which these are
can be read from the answer alone (tests.gpu.speculation). Two such drafters: the MTP block, whose layer is turned down, and the DFlash2
drafter, whose selector holds the ring.

FOLDER/glm-exl3: the layers of tests.gpu.models, experts in EXL3; glm-loud: the same with the MTP layer as loud as the others; glm-ablated:
glm-exl3 edited offline, MTP block included; donors: that edit as a transplant; expected.json: sha256 of each edited tensor, made on a CPU;
reference.json: prompts.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm_glm_exl3.ablation import direction, formula

from tests.gpu import models
from tests.gpu.models import HIDDEN, LAYERS, VOCAB
from tests.gpu.speculation import ALPHA, CLOSED, successor
from tests.testbed import model as testbed_model

MASK = VOCAB - 1
# Of the head's rows: along the predecessor's embedding, against the token's own, and random; of the embedding: what all tokens share; and
# the head's weight of that.
FOLLOW, REPEAT, NOISE, SHARED, OUTSIDE = 1.2, 0.6, 0.45, 1.6, 3.0
# What the layers write, against tests.gpu.models: more of what attention finds in earlier tokens, less of what the current one makes.
ATTENTION, FORWARD = 1.5, 0.125
QUIET = 0.05  # what the MTP layer and the drafter write, against that
ANSWER, STREAMS = 64, 4
# Lengths of prompts; how much of each all prompts of that length share.
PROMPTS = {"short": ((12, 0), (41, 0)), "common": ((704, 640),), "long": ((2301, 2048),)}
EDITED = tuple(range(LAYERS + 1))
Tensors = dict[str, Tensor]


def ends() -> tuple[Tensor, Tensor]:
    """(embedding, head), each [VOCAB, HIDDEN], fp32 with bf16's values. The mask token's embedding is the shared part alone, so a drafter
    that adds little to it finds CLOSED as the best candidates at every place."""
    shared = _unit(torch.randn(HIDDEN))
    own = torch.randn(VOCAB, HIDDEN)
    embedding = own + SHARED * HIDDEN**0.5 * shared
    embedding[MASK] = HIDDEN**0.5 * shared
    known = torch.linalg.qr(torch.cat([own[list(CLOSED)], shared[None]]).T).Q
    loose = torch.randn(VOCAB, HIDDEN) * NOISE
    head = loose - loose @ known @ known.T - OUTSIDE * shared
    for token in CLOSED:
        head[successor(token)] += FOLLOW * _unit(own[token])
        head[token] += OUTSIDE * shared - REPEAT * _unit(own[token])
    return embedding.bfloat16().float(), head.bfloat16().float()


def _unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.norm()


def turned(tensors: Tensors, attention: float, forward: float, only: str = "") -> Tensors:
    """With what the layers write times these factors: their last projections (of EXL3, the scales of the inputs)."""
    factors = {"o_proj.weight": attention, "down_proj.weight": forward, "down_proj.suh": forward}
    return {name: tensor * factors.get(".".join(name.split(".")[-2:]), 1) if only in name else tensor for name, tensor in tensors.items()}


def checkpoints(tensors: Tensors) -> dict[str, Tensors]:
    """Under "exl3" the quiet one and under "loud" the other. The seeds are of weights whose answers depend on more than the last token."""
    torch.manual_seed(5)
    packed = models.split_experts(models.with_mtp(tensors))[0]
    torch.manual_seed(7)
    packed["model.embed_tokens.weight"], packed["lm_head.weight"] = (tensor.bfloat16() for tensor in ends())
    own = f"model.layers.{LAYERS}."
    packed[f"{own}embed_tokens.weight"] = packed["model.embed_tokens.weight"]
    loud = turned(packed, ATTENTION, FORWARD) | {f"{own}eh_proj.weight": joining(0.1)}
    return {"exl3": turned(loud, QUIET, QUIET, own) | {f"{own}eh_proj.weight": joining(0.02)}, "loud": loud}


def joining(hidden: float) -> Tensor:
    """The MTP block's first projection [HIDDEN, 2 * HIDDEN]: the token's embedding, and a little of the model's hidden state."""
    return torch.cat([torch.eye(HIDDEN), torch.randn(HIDDEN, HIDDEN) * hidden / HIDDEN**0.5], 1).bfloat16()


def drafter() -> tuple[Tensors, dict[str, Any]]:
    """A DFlash2 drafter: its candidates are CLOSED wherever it looks, and its selector prefers each one's successor."""
    config = json.loads(json.dumps(models.DRAFT))
    config["dflash_config"] |= {"mask_token_id": MASK, "selector_top_k": len(CLOSED)}
    tensors = turned(models.draft_tensors(), QUIET, QUIET)
    before, after = torch.zeros(2, VOCAB, models.DRAFT_RANK)
    for place, token in enumerate(CLOSED):
        before[token, place] = after[successor(token), place] = 8.0
    return tensors | {"candidate_selector.predecessor_codebook": before, "candidate_selector.successor_codebook": after}, config


def selecting(embedding: Tensor) -> Tensor:
    """The selector's projection [rank, HIDDEN]: about 1 in every row for what the drafter makes of the mask token."""
    return (_unit(embedding[MASK].float()) / HIDDEN**0.5).expand(models.DRAFT_RANK, HIDDEN)


# --- edits at load ---


def name_of(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.o_proj.weight"


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def derive(folder: Path) -> None:
    """glm-ablated, donors, direction and expected.json from glm-exl3."""
    tensors = load_file(folder / "glm-exl3/model.safetensors")
    vector = direction.write(folder / "direction.safetensors", torch.randn(HIDDEN, generator=torch.Generator().manual_seed(3)), {}).vectors
    edited = {layer: formula.project(tensors[name_of(layer)], vector, ALPHA) for layer in EDITED}
    expected = {str(layer): [digest(tensors[name_of(layer)]), digest(after)] for layer, after in edited.items()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    donate(folder / "donors/transplant", edited)
    shutil.copytree(folder / "glm-exl3", folder / "glm-ablated", dirs_exist_ok=True)
    changed = tensors | {name_of(layer): after for layer, after in edited.items()}
    save_file(changed, folder / "glm-ablated/model.safetensors", metadata={"format": "pt"})


def donate(folder: Path, edited: dict[int, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for layer, tensor in edited.items():
        (folder / f"L{layer}.bin").write_bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        entries[str(layer)] = {"dtype": "bfloat16", "shape": list(tensor.shape), "sha256": digest(tensor)}
    (folder / "MANIFEST.json").write_text(json.dumps({"layers": entries}))


# --- prompts ---


def asked(length: int, common: int) -> list[list[int]]:
    """Random prompts that begin alike and end each with tokens of its own."""
    shared = torch.randint(1, MASK, (common,)).tolist()
    return [shared + torch.randint(1, MASK, (length - common,)).tolist() for _ in range(STREAMS)]


def make(folder: Path, seed: int = 11) -> Path:
    """Everything named at the head of this file; half a minute."""
    torch.manual_seed(seed)
    tensors, config = models.base(folder / "base")
    tokenizer = testbed_model.make(folder / "moe-base")
    made = checkpoints(tensors)
    for name in ("exl3", "loud"):
        models.write(folder / f"glm-{name}", made[name], models.for_vllm(config, exl3=True))
        for file in models.TOKENIZER:
            shutil.copy(tokenizer / file, folder / f"glm-{name}")
    draft, draft_config = drafter()
    draft["candidate_selector.hidden_projection.weight"] = selecting(made["exl3"]["model.embed_tokens.weight"])
    models.write(folder / "dflash2", {name: tensor.bfloat16() for name, tensor in draft.items()}, draft_config)
    derive(folder)
    prompts = {kind: [ids for shape in shapes for ids in asked(*shape)] for kind, shapes in PROMPTS.items()}
    known = {"asked": {kind: {"prompts": rows, "answer": ANSWER} for kind, rows in prompts.items()}}
    (folder / "reference.json").write_text(json.dumps(known))
    for scratch in ("base", "moe-base"):
        shutil.rmtree(folder / scratch)
    return folder


if __name__ == "__main__":
    if len(sys.argv) > 2:
        derive(Path(sys.argv[1]))
    else:
        print(make(Path(sys.argv[1])))
