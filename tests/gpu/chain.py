"""A tiny GLM-5.3-Flash whose drafts are accepted now and then, prompts for it, and what each edit at load must make of its weights.

    python -m tests.gpu.chain FOLDER          # needs torch (a CPU is enough), transformers >= 5.19 and vllm_glm_exl3 on the path
    python -m tests.gpu.chain FOLDER derive   # only what is made from glm-exl3

Answers stay within CLOSED, a ring of tokens. The head prefers each token's successor there, and what the layers make of all earlier tokens
decides otherwise now and then. A drafter that always says the successor is right at some places and wrong at others, and which these are
can be read from the answer alone (tests.gpu.speculation). Two such drafters: the MTP block, whose layer is turned down, and the DFlash2
drafter, whose selector holds the ring.

FOLDER/glm-exl3: the layers of tests.gpu.models, experts in EXL3; glm-loud: the same with the MTP layer as loud as the others; glm-ablated:
glm-exl3 edited offline, MTP block included; donors: that edit as a transplant; expected.json: sha256 of each edited tensor, made on a CPU;
reference.json: prompts, and transformers' answers to some.
"""

import hashlib
import json
import shutil
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from vllm_glm_exl3.ablation import direction, formula

from tests.gpu import models
from tests.gpu.models import HIDDEN, LAYERS, PREFIX, VOCAB
from tests.gpu.speculation import ALPHA, CLOSED, successor
from tests.testbed import model as testbed_model

MASK = VOCAB - 1
# Of the head's rows: along the predecessor's embedding, and random; of the embedding: what all tokens share; and the head's weight of that.
FOLLOW, NOISE, SHARED, OUTSIDE = 1.0, 0.45, 1.6, 3.0
# What the layers write, against tests.gpu.models: more of what attention finds in earlier tokens, less of what the current one makes.
ATTENTION, FORWARD = 1.75, 0.125
QUIET = 0.05  # what the MTP layer and the drafter write, against that
LENGTHS, CANDIDATES, CHOSEN, ANSWER = (12, 41), 32, 4, 64  # prompts of each length, how many are tried and kept
COMMON = {"common": (704, 640), "long": (2301, 2048)}  # length of a prompt, and how much of it all STREAMS prompts share
STREAMS = 4
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
        head[successor(token)] += FOLLOW * _unit(own[token]) + OUTSIDE * shared
    return embedding.bfloat16().float(), head.bfloat16().float()


def _unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.norm()


def turned(tensors: Tensors, attention: float, forward: float, only: str = "") -> Tensors:
    """With what the layers write times these factors: their last projections (of EXL3, the scales of the inputs)."""
    factors = {"o_proj.weight": attention, "down_proj.weight": forward, "down_proj.suh": forward}
    return {name: tensor * factors.get(".".join(name.split(".")[-2:]), 1) if only in name else tensor for name, tensor in tensors.items()}


def checkpoints(tensors: Tensors) -> dict[str, Tensors]:
    """Under "exl3" and "loud", and under "dense" what transformers takes."""
    embedding, head = ends()
    tensors = tensors | {f"{PREFIX}embed_tokens.weight": embedding, "lm_head.weight": head}
    own = f"model.layers.{LAYERS}."
    text = models.with_mtp(tensors)
    text[f"{own}eh_proj.weight"] = torch.cat([torch.eye(HIDDEN), torch.randn(HIDDEN, HIDDEN) * 0.1 / HIDDEN**0.5], 1)
    packed, dense = models.split_experts(text)
    loud = turned(packed, ATTENTION, FORWARD)
    quiet = turned(loud, QUIET, QUIET, own)
    quiet[f"{own}eh_proj.weight"] = torch.cat([torch.eye(HIDDEN), torch.randn(HIDDEN, HIDDEN) * 0.02 / HIDDEN**0.5], 1).bfloat16()
    return {"exl3": quiet, "loud": loud, "dense": turned(dense, ATTENTION, FORWARD)}


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


def asked(length: int, common: int, count: int = STREAMS) -> list[list[int]]:
    """Random prompts that begin alike and end each with tokens of its own."""
    shared = torch.randint(1, MASK, (common,)).tolist()
    return [shared + torch.randint(1, MASK, (length - common,)).tolist() for _ in range(count)]


def untold(row: dict[str, Any]) -> int:
    """At how many places of an answer its last token does not say the next, as it was followed by another one elsewhere."""
    pairs = list(pairwise(row["ids"]))
    after = Counter(token for token, _ in set(pairs))
    return sum(after[token] > 1 for token, _ in pairs)


def reference(folder: Path, config: dict[str, Any], dense: Tensors) -> dict[str, Any]:
    """Greedy answers in fp32 to prompts of each length. Of those that stay in CLOSED the least told ones, and of these the clearest."""
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

    named = {name.replace("model.", PREFIX, 1): tensor.float() for name, tensor in dense.items() if f".layers.{LAYERS}." not in name}
    models.write(folder, named, config | {"dtype": "float32"})
    model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rows: list[dict[str, Any]] = []
    for length in LENGTHS:
        many = models.greedy(model, torch.randint(1, MASK, (CANDIDATES, length)), ANSWER)
        inside = [row for row in many if set(row["ids"]) <= set(CLOSED)]
        rows += sorted(sorted(inside, key=untold)[-2 * CHOSEN :], key=lambda row: -min(row["leads"]))[:CHOSEN]
    for row in rows:
        row["margins"] = models.margins(model, row)
        print(len(row["prompt"]), "tokens; least lead", round(min(row["leads"]), 3), "untold", untold(row), row["ids"])
    return {"short": rows, "asked": {kind: {"prompts": asked(*shape), "answer": ANSWER} for kind, shape in COMMON.items()}}


def make(folder: Path, seed: int = 11) -> Path:
    """Everything named at the head of this file; some minutes on two cores."""
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
    (folder / "reference.json").write_text(json.dumps(reference(folder / "for-transformers", config, made["dense"])))
    for scratch in ("base", "moe-base", "for-transformers"):
        shutil.rmtree(folder / scratch)
    return folder


if __name__ == "__main__":
    if len(sys.argv) > 2:
        derive(Path(sys.argv[1]))
    else:
        print(make(Path(sys.argv[1])))
