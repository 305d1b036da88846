"""What vLLM's sparse indexer asks of DeepGEMM, in plain torch, for a machine whose torch is older than the one vLLM was built with.

vLLM takes a module of this name before the DeepGEMM in its wheel, which is not built for the stable ABI: under torch 2.11 it loads (with
five symbols passed on), and reads tensors' sizes wrong. Slow, and read back to the host, so not for CUDA graphs of contexts beyond
index_topk tokens; below that the indexer takes every token and asks for the schedule alone.
"""

import torch
from torch import Tensor

SCALE_BYTES = 4


def get_paged_mqa_logits_metadata(context_lens: Tensor, block_size: int, slots: int, **_: object) -> Tensor:
    """int32 [slots + 1, 2]: a schedule that only DeepGEMM's kernel would read."""
    return torch.zeros(slots + 1, 2, dtype=torch.int32, device=context_lens.device)


def logits(q: Tensor, keys: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    """q fp8 [M, H, D], keys fp8 [N, D] with scales fp32 [N], weights fp32 [M, H] -> fp32 [M, N]: sum over heads of weight * relu(q k)."""
    scores = torch.einsum("mhd,nd->mhn", q.float(), keys.float()).relu()
    return torch.einsum("mhn,mh->mn", scores, weights.float()) * scales


def fp8_fp4_mqa_logits(
    q: tuple[Tensor, Tensor | None], kv: tuple[Tensor, Tensor], weights: Tensor, starts: Tensor, ends: Tensor, clean_logits: bool = True
) -> Tensor:
    """For one sequence without pages; -inf outside starts <= n < ends."""
    found = logits(q[0], *kv, weights)
    place = torch.arange(found.shape[1], device=found.device)[None]
    return found.masked_fill((place < starts[:, None]) | (place >= ends[:, None]), float("-inf"))


def fp8_fp4_paged_mqa_logits(
    q: tuple[Tensor, Tensor | None], cache: Tensor, weights: Tensor, context_lens: Tensor, block_tables: Tensor,
    schedule: Tensor, max_model_len: int, clean_logits: bool = True, **_: object,
) -> Tensor:  # fmt: skip
    """q fp8 [B, next_n, H, D], cache uint8 [blocks, block, 1, D + 4], context_lens [B, next_n] -> fp32 [B * next_n, max_model_len].

    A block holds its keys first and its scales after them.
    """
    batch, following, _, width = q[0].shape
    found = torch.full((batch * following, max_model_len), float("-inf"), device=cache.device)
    lengths = context_lens.view(batch, -1).tolist()
    for request in range(batch):
        longest = max(lengths[request])
        if longest <= 0:
            continue
        keys, scales = pages(cache, block_tables[request, : -(-longest // cache.shape[1])], width)
        for step in range(following):
            row, length = request * following + step, lengths[request][min(step, len(lengths[request]) - 1)]
            found[row, :length] = logits(q[0][request, step][None], keys[:length], scales[:length], weights[row][None])[0]
    return found


def pages(cache: Tensor, which: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Keys fp8 [n * block, width] and scales fp32 [n * block] of these blocks."""
    block = cache.shape[1]
    held = cache[which.long()].reshape(len(which), block * (width + SCALE_BYTES))
    keys = held[:, : block * width].contiguous().view(torch.float8_e4m3fn)
    return keys.view(-1, width), held[:, block * width :].contiguous().view(torch.float32).view(-1)
