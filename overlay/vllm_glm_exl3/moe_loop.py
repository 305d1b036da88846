"""Experts one after the other on the GPU: for any count of tokens and any codebook, not capturable (it reads the counts back)."""

import torch
from torch import Tensor

from vllm_glm_exl3 import linear_cuda
from vllm_glm_exl3.experts import Experts, swiglu
from vllm_glm_exl3.routing import Tables


def run(x: Tensor, tables: Tables, experts: Experts, out: Tensor, least: int = 1) -> None:
    """Add to `out` fp32 [T, H] what experts with at least `least` assignments give. x fp16 [T, H]."""
    start = 0
    for expert, count in enumerate(tables.count[:-1].tolist()):
        if count >= least:
            token = tables.token[start : start + count]
            result = forward(x[token], experts, expert)
            out.index_add_(0, token, result * tables.weight[start : start + count, None].float())
        start += count


def forward(x: Tensor, experts: Experts, which: int) -> Tensor:
    """x fp16 [rows, H] through one expert -> fp32 [rows, H]."""
    gate = linear_cuda.linear(x, *experts.gate.pick(which), experts.codebook)
    up = linear_cuda.linear(x, *experts.up.pick(which), experts.codebook)
    return linear_cuda.linear(swiglu(gate, up, experts.limit).to(torch.float16), *experts.down.pick(which), experts.codebook)
