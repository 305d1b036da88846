"""Experts for a few tokens in two launches, exllamav3_ext.exl3_moe_coop: every (token, expert) pair has its own blocks.

It sorts the pairs itself, so nothing but three conversions runs before it, and sums in a fixed order. No host synchronisation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_glm_exl3 import ext, routing
from vllm_glm_exl3.codec import BLOCK
from vllm_glm_exl3.experts import Experts

SLOTS = 256  # pairs of token and expert that the kernel's tables hold
SILU = 0


@dataclass(frozen=True)
class Scratch:
    """For SLOTS pairs: rotated inputs fp16 [S, H] twice, gate and up fp16 [S, I], activation fp16 [S, I], down fp32 [S, H];
    `counters` int32, zero before the first call (the kernels put them back)."""

    rotated: tuple[Tensor, Tensor]
    gate_up: tuple[Tensor, Tensor]
    activation: Tensor
    down: Tensor
    counters: Tensor


_scratch: dict[tuple[torch.device, int, int], Scratch] = {}


def scratch(device: torch.device, hidden: int, inner: int) -> Scratch:
    """Shared by all layers of one geometry on `device`; made at the first call, before any graph is captured."""
    key = (device, hidden, inner)
    if key not in _scratch:
        wide = [torch.empty(SLOTS, hidden, dtype=torch.float16, device=device) for _ in range(2)]
        narrow = [torch.empty(SLOTS, inner, dtype=torch.float16, device=device) for _ in range(3)]
        down = torch.empty(SLOTS, hidden, dtype=torch.float32, device=device)
        count = SLOTS * (inner // BLOCK) + SLOTS * (hidden // BLOCK) + 2 + (SLOTS + 1) + SLOTS
        counters = torch.zeros(count, dtype=torch.int32, device=device)
        _scratch[key] = Scratch((wide[0], wide[1]), (narrow[0], narrow[1]), narrow[2], down, counters)
    return _scratch[key]


def run(x: Tensor, ids: Tensor, weights: Tensor, expert_map: Tensor | None, experts: Experts) -> Tensor:
    """x fp16 [T, H], contiguous, ids and weights [T, k] -> fp32 [T, H], SLOTS pairs at a time. Other ranks' experts add nothing."""
    local = ids.long() if expert_map is None else routing.local_ids(ids, expert_map, experts.count).view(ids.shape)
    half = weights.to(torch.float16)
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    tokens = SLOTS // ids.shape[1]
    for begin in range(0, x.shape[0], tokens):
        piece = slice(begin, begin + tokens)
        _launch(x[piece], local[piece].contiguous(), half[piece].contiguous(), experts, out[piece])
    return out


def _launch(x: Tensor, local: Tensor, weights: Tensor, experts: Experts, out: Tensor) -> None:
    space = scratch(x.device, experts.hidden, experts.inner)
    ext.load().exl3_moe_coop(
        x, local, weights,
        0, experts.count,  # pairs outside this range (-1 too) are left out
        experts.hidden, *experts.rows(), None, None, None,
        float(experts.gate.bits), float(experts.up.bits), float(experts.down.bits),
        *ext.flags(experts.codebook), SILU, experts.limit, True,
        *space.rotated, *space.gate_up, space.activation, space.down, space.counters, out, None, None,
    )  # fmt: skip
