"""Layers of random trellis bits on a CUDA device, in the sizes of GLM-5.3-Flash, and one call of the plugin's op."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm_glm_exl3 import codec, ops
from vllm_glm_exl3.experts import Experts, pointer_tables

HIDDEN, EXPERTS, TOP_K = 4096, 288, 8  # GLM-5.3-Flash
INNERS = (1024, 2048)  # two ranks; one rank
DEVICE = "cuda"
Routed = tuple[Tensor, Tensor, Tensor]  # activations, expert ids, weights


@dataclass(frozen=True)
class Layer:
    """One layer's packed weights on the device, as moe.py registers them."""

    w13: tuple[Tensor, Tensor, Tensor]
    w2: tuple[Tensor, Tensor, Tensor]
    tables: Tensor
    codebook: int = codec.MCG

    def experts(self, limit: float = 0.0) -> Experts:
        return Experts(*ops.stacked(self.w13, self.w2), self.codebook, limit, self.tables)


def bits16(*shape: int) -> Tensor:
    return torch.randint(-32768, 32768, shape, dtype=torch.int32, device=DEVICE).to(torch.int16)


def scales(*shape: int, gain: float = 1.0) -> Tensor:
    return (torch.sign(torch.randn(shape, device=DEVICE)) * gain * (1 + 0.1 * torch.rand(shape, device=DEVICE))).half()


def make_layer(inner: int, bits: int = 4, experts: int = EXPERTS, hidden: int = HIDDEN, codebook: int = codec.MCG) -> Layer:
    w13 = bits16(experts, 2, hidden // 16, inner // 16, 16 * bits), scales(experts, 2, hidden, gain=0.02), scales(experts, 2, inner)
    w2 = bits16(experts, inner // 16, hidden // 16, 16 * bits), scales(experts, inner, gain=0.02), scales(experts, hidden)
    return Layer(w13, w2, pointer_tables(*ops.stacked(w13, w2)), codebook)


def routed(tokens: int, experts: int = EXPERTS, k: int = TOP_K, hidden: int = HIDDEN) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 activations, distinct expert ids per token, weights that sum to one."""
    ids = torch.rand(tokens, experts, device=DEVICE).topk(k).indices.to(torch.int32)
    return torch.randn(tokens, hidden, device=DEVICE).bfloat16(), ids, torch.rand(tokens, k, device=DEVICE).softmax(-1)


def moe(layer: Layer, routing_: tuple[Tensor, Tensor, Tensor], path: str, limit: float = 0.0, **how: Any) -> Tensor:
    x, ids, weights = routing_
    more = (
        how.get("expert_map"),
        *layer.w13,
        *layer.w2,
        layer.tables,
        layer.codebook,
        limit,
        path,
        how.get("rows", 256),
        how.get("exact", False),
    )
    return torch.ops.vllm_glm_exl3.moe(x, ids, weights, *more)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())
