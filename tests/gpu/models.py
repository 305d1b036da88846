"""Tiny GLM-5.3-Flash models that must answer alike, a drafter for them, and what transformers says they answer.

    python -m tests.gpu.models FOLDER          # needs torch (a CPU is enough), transformers >= 5.19 and vllm_glm_exl3 on the path
    python -m tests.gpu.models FOLDER derive   # only what is made from glm-exl3

FOLDER/glm-exl3 and FOLDER/glm-dense: four layers (three KDA, one indexed MLA; one dense, three MoE) and an MTP layer, the second with
the experts of the first written out in bf16; FOLDER/glm-swapped: the first with two matrices exchanged; FOLDER/glm-ablated:
the first, edited offline; FOLDER/dflash2: a random DFlash2 drafter; FOLDER/moe-*: the twins of tests/overlay;
FOLDER/reference.json: prompts, and transformers' greedy answers of glm-dense in fp32, with log-probabilities.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.overlay import models as overlay_models
from tests.overlay.models import Weight, random_weight
from tests.testbed import model as testbed_model

HIDDEN, VOCAB, LAYERS, EXPERTS = 256, 512, 4, 4
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 512, "moe_intermediate_size": 256,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": EXPERTS, "num_experts_per_tok": 2,
    "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256,
    "index_topk": 2048, "index_n_heads": 16, "index_head_dim": 128, "index_kpool": 4,
    "linear_num_heads": 2, "linear_head_dim": 128, "max_position_embeddings": 4096,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "indexed_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "indexer_types": ["full"] * LAYERS,
    "pad_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN}
# what vLLM reads and transformers' configuration does not declare
FOR_VLLM = {
    "mhc": True, "mla_use_nope": True, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "indexer_rope_interleave": True,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
DRAFT_LAYERS, DRAFT_TOKENS, DRAFT_RANK = 2, 3, 32
PREFIX = "model.language_model."
KEPT_IN_FP32 = ("A_log", "dt_bias", "hc_", "e_score_correction_bias", "index_kpool_compress_ape")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
SHORT, ANSWER, LONG, LONG_ANSWER = 12, 24, 2301, 8
CANDIDATES, CHOSEN = 96, 4
ALPHA = 1.5  # of the ablation


def spread(name: str) -> float | None:
    """Standard deviation for the tensors that are drawn anew, larger than transformers' 0.02 so that answers depend on every part."""
    if name.endswith("embed_tokens.weight"):
        return 1.0
    if name.endswith(("lm_head.weight", "shared_head.head.weight", "mlp.gate.weight")):
        return 0.2
    if name.endswith("conv1d.weight"):
        return 0.3
    if name.endswith(("_proj.weight", "wk.weight", "wq_b.weight", "index_kpool_compress_gate")):
        return 0.05
    return 0.02 if name.endswith(("e_score_correction_bias", "compress_ape")) else None


def drawn(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, random where `spread` says so, rounded to bf16 where a checkpoint holds bf16; all fp32."""
    found = {}
    for name, tensor in tensors.items():
        size = spread(name)
        value = tensor.float() if size is None else torch.randn(tensor.shape) * size
        found[name] = value if any(part in name for part in KEPT_IN_FP32) else value.bfloat16().float()
    return found


def base(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A checkpoint as transformers writes it (names and shapes are its own) and its configuration."""
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextConfig
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

    Glm5NextForConditionalGeneration(Glm5NextConfig(text_config=TEXT, vision_config=VISION)).save_pretrained(folder)
    return drawn(load_file(folder / "model.safetensors")), json.loads((folder / "config.json").read_text())


def with_mtp(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Text tensors in vLLM's names, and layer LAYERS, which transformers does not have: like the last layer, but without mHC."""
    text = {name.replace(PREFIX, "model."): tensor for name, tensor in tensors.items() if "visual" not in name}
    last, own = f"model.layers.{LAYERS - 1}.", f"model.layers.{LAYERS}."
    like = {name.replace(last, own): tensor for name, tensor in text.items() if name.startswith(last) and ".hc_" not in name}
    extra = {
        f"{own}eh_proj.weight": torch.empty(HIDDEN, 2 * HIDDEN),
        f"{own}enorm.weight": torch.ones(HIDDEN),
        f"{own}hnorm.weight": torch.ones(HIDDEN),
        f"{own}shared_head.norm.weight": torch.ones(HIDDEN),
    }
    # no head of its own: vLLM 0.32 has no parameter for one and takes the model's
    return text | drawn(like | extra) | {f"{own}embed_tokens.weight": text["model.embed_tokens.weight"]}


def split_experts(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(with EXL3 experts, with the same experts in bf16)."""
    packed: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            weight: Weight = random_weight(tensor.shape[1], tensor.shape[0])
            packed |= weight.stored(name.removesuffix(".weight"))
            dense[name] = weight.dense().bfloat16()
        else:
            packed[name] = dense[name] = tensor if any(part in name for part in KEPT_IN_FP32) else tensor.bfloat16()
    return packed, dense


def for_vllm(config: dict[str, Any], exl3: bool) -> dict[str, Any]:
    text = config["text_config"] | FOR_VLLM
    changed = config | {"architectures": ["Glm5NextForCausalLM"], "text_config": text, "dtype": "bfloat16"}
    return changed | ({"quantization_config": overlay_models.DECLARED} if exl3 else {})


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def swapped(folder: Path, into: Path) -> Path:
    """A copy in which the down projections of two experts have changed places: answers that do not show it could not show anything."""
    tensors = load_file(folder / "model.safetensors")
    one, other = (f"model.layers.2.mlp.experts.{number}.down_proj." for number in (0, 1))
    changed = {name.replace(one, other) if one in name else name.replace(other, one): tensor for name, tensor in tensors.items()}
    shutil.copytree(folder, into, dirs_exist_ok=True)
    save_file(changed, into / "model.safetensors", metadata={"format": "pt"})
    return into


def ablated(folder: Path, into: Path, direction: Path, alpha: float = ALPHA) -> Path:
    """A copy whose attention's output projections were edited beforehand, in fp64, with a random direction that is written beside it."""
    tensors = load_file(folder / "model.safetensors")
    r = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(3))
    save_file({"direction": r}, direction, metadata={"hidden": str(HIDDEN)})
    unit = r.double() / r.double().norm()
    for name, tensor in tensors.items():
        if name.endswith("self_attn.o_proj.weight") and f".layers.{LAYERS}." not in name:
            tensors[name] = (tensor.double() - alpha * torch.outer(unit, unit @ tensor.double())).bfloat16()
    shutil.copytree(folder, into, dirs_exist_ok=True)
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


def derive(folder: Path) -> None:
    """What is made from glm-exl3 alone: cheaper to make again than to carry."""
    swapped(folder / "glm-exl3", folder / "glm-swapped")
    ablated(folder / "glm-exl3", folder / "glm-ablated", folder / "direction.safetensors")


# --- the drafter ---

DRAFT = {
    "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "intermediate_size": 256, "num_hidden_layers": DRAFT_LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "layer_types": ["full_attention"] * DRAFT_LAYERS,
    "dflash_config": {
        "target_layer_ids": [0, 1], "mask_token_id": VOCAB - 1, "causal": False, "conv_kernel_size": 4, "conv_group_size": 16,
        "selector_rank": DRAFT_RANK, "selector_top_k": 8,
    },
}  # fmt: skip


def draft_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """As vLLM's qwen3_dflash2 loads them; embedding and head are the target's."""
    yield "fc.weight", (HIDDEN, 2 * HIDDEN)
    yield from ((f"{name}.weight", (HIDDEN,)) for name in ("hidden_norm", "norm"))
    for name in ("predecessor_codebook", "successor_codebook"):
        yield f"candidate_selector.{name}", (VOCAB, DRAFT_RANK)
    yield "candidate_selector.hidden_projection.weight", (DRAFT_RANK, HIDDEN)
    for layer in range(DRAFT_LAYERS):
        yield from ((f"layers.{layer}.{name}", shape) for name, shape in _draft_layer())


def _draft_layer() -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (HIDDEN,)
    for name, out in (("q", 256), ("k", 128), ("v", 128)):
        yield f"self_attn.{name}_proj.weight", (out, HIDDEN)
    yield "self_attn.o_proj.weight", (HIDDEN, 256)
    yield from ((f"self_attn.{name}_norm.weight", (64,)) for name in ("q", "k"))
    yield from ((f"mlp.{name}_proj.weight", (256, HIDDEN)) for name in ("gate", "up", "down"))
    for name in ("attention_conv", "mlp_conv"):
        yield f"{name}.base_kernel", (2, 4, HIDDEN)
        yield f"{name}.kernel_projection.weight", (2 * 4 * HIDDEN // 16, HIDDEN)


def draft_tensors() -> dict[str, Tensor]:
    return {name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.05 for name, shape in draft_shapes()}


# --- what transformers answers ---


def reference(folder: Path, config: dict[str, Any], dense: dict[str, Tensor]) -> dict[str, Any]:
    """Greedy answers in fp32. Of many prompts those whose best token leads by most: bf16 must not turn a near tie."""
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextForConditionalGeneration

    named = {name.replace("model.", PREFIX, 1): tensor.float() for name, tensor in dense.items() if f".layers.{LAYERS}." not in name}
    write(folder, named, config | {"dtype": "float32"})
    model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    many = greedy(model, torch.randint(1, VOCAB - 1, (CANDIDATES, SHORT)), ANSWER)
    best = sorted(many, key=lambda row: -min(row["leads"]))[:CHOSEN]
    for row in best:
        row["margins"] = margins(model, row)
    long = greedy(model, torch.randint(1, VOCAB - 1, (1, LONG)), LONG_ANSWER)
    half = model.bfloat16()
    return {
        "short": best,
        "long": long,
        "short_bf16": [row for one in best for row in greedy(half, torch.tensor([one["prompt"]]), ANSWER)],
        "long_bf16": greedy(half, torch.tensor([long[0]["prompt"]]), LONG_ANSWER),
    }


@torch.no_grad()
def margins(model: Any, row: dict[str, Any]) -> list[float]:
    """Per answered token: by how much the last expert chosen led the first one left out, in the layer where that was least.

    Where it is small, rounding chooses another expert, and log-probabilities jump.
    """
    seen: list[Tensor] = []

    def keep(router: Any, _: Any, out: tuple[Tensor, ...]) -> None:
        scores = (out[0].float().sigmoid() + router.e_score_correction_bias).sort(-1, descending=True).values
        seen.append(scores[:, router.top_k - 1] - scores[:, router.top_k])

    hooks = [part.register_forward_hook(keep) for part in model.modules() if type(part).__name__ == "Glm5NextTextTopkRouter"]
    model(input_ids=torch.tensor([row["prompt"] + row["ids"][:-1]]))
    for hook in hooks:
        hook.remove()
    return torch.stack(seen).min(0).values[len(row["prompt"]) - 1 :].tolist()


@torch.no_grad()
def greedy(model: Any, prompts: Tensor, count: int) -> list[dict[str, Any]]:
    """Per prompt: its ids, `count` greedy ids, each one's log-probability and lead over the second best."""
    done = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count, min_new_tokens=count, do_sample=False,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    logits = torch.stack(done.logits, 1).float()
    ids = done.sequences[:, prompts.shape[1] :]
    chosen = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    top = logits.topk(2, -1).values
    leads = top[..., 0] - top[..., 1]
    rows = zip(prompts.tolist(), ids.tolist(), chosen.tolist(), leads.tolist(), strict=True)
    return [dict(zip(("prompt", "ids", "logprobs", "leads"), row, strict=True)) for row in rows]


def make(folder: Path, seed: int = 11) -> Path:
    """Everything named at the head of this file; about a minute."""
    torch.manual_seed(seed)
    tensors, config = base(folder / "base")
    packed, dense = split_experts(with_mtp(tensors))
    tokenizer = testbed_model.make(folder / "moe-base")
    for name, content in (("exl3", packed), ("dense", dense)):
        write(folder / f"glm-{name}", content, for_vllm(config, name == "exl3"))
        for file in TOKENIZER:
            shutil.copy(tokenizer / file, folder / f"glm-{name}")
    derive(folder)
    write(folder / "dflash2", {name: tensor.bfloat16() for name, tensor in draft_tensors().items()}, DRAFT)
    found = reference(folder / "for-transformers", config, dense)
    (folder / "reference.json").write_text(json.dumps(found))
    for name, made in zip(("exl3", "dense"), overlay_models.make_twins(folder / "twins"), strict=True):
        shutil.copytree(made, folder / f"moe-{name}", dirs_exist_ok=True)
    for scratch in ("base", "moe-base", "for-transformers", "twins"):
        shutil.rmtree(folder / scratch)
    return folder


if __name__ == "__main__":
    if len(sys.argv) > 2:
        derive(Path(sys.argv[1]))
    else:
        print(make(Path(sys.argv[1])))
