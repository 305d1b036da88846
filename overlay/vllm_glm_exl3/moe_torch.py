"""Experts in plain torch, fp32, several at a time: for CPUs, and what the CUDA paths are compared with."""

import torch
from torch import Tensor

from vllm_glm_exl3 import codec
from vllm_glm_exl3.experts import Experts, swiglu
from vllm_glm_exl3.routing import Tables

DECODED_BYTES = 512 << 20  # of one group's fp32 weights (about five times that while they are decoded)


def run(x: Tensor, tables: Tables, experts: Experts) -> Tensor:
    """x [T, H] -> fp32 [T, H]: the weighted sum of each token's experts that this rank holds. Reads the counts back."""
    counts = tables.count[:-1].tolist()
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    active = [expert for expert, count in enumerate(counts) if count]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for group in _groups(active, experts):
        _add(out, x, tables, experts, [(expert, starts[expert], counts[expert]) for expert in group])
    return out


def _groups(active: list[int], experts: Experts) -> list[list[int]]:
    size = max(1, DECODED_BYTES // (3 * 4 * experts.hidden * experts.inner))
    return [active[begin : begin + size] for begin in range(0, len(active), size)]


def _add(out: Tensor, x: Tensor, tables: Tables, experts: Experts, group: list[tuple[int, int, int]]) -> None:
    """Add to `out` what the experts (number, first assignment, assignments) of `group` give, in one batched product."""
    rows = max(count for _, _, count in group)
    first = torch.tensor([start for _, start, _ in group], device=x.device)[:, None]
    held = torch.tensor([count for _, _, count in group], device=x.device)[:, None]
    place = torch.arange(rows, device=x.device)[None, :]
    valid = place < held
    place = (first + place).clamp(max=len(tables.token) - 1)
    token = tables.token[place]
    result = forward(x[token].float(), experts, torch.tensor([expert for expert, _, _ in group], device=x.device))
    weight = torch.where(valid, tables.weight[place].float(), 0.0)
    out.index_add_(0, token.flatten(), (result * weight[..., None]).flatten(0, 1))


def forward(x: Tensor, experts: Experts, which: Tensor) -> Tensor:
    """x fp32 [G, rows, H] through expert which[g] each -> fp32 [G, rows, H]."""
    gate = codec.linear(x, *experts.gate.pick(which), experts.codebook)
    up = codec.linear(x, *experts.up.pick(which), experts.codebook)
    return codec.linear(swiglu(gate, up, experts.limit), *experts.down.pick(which), experts.codebook)
