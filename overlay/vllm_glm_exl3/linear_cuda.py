"""One EXL3 weight times activations on the GPU. No host synchronisation: it can be captured."""

import torch
from torch import Tensor

from vllm_glm_exl3 import ext

# From this many rows on, decoding the weight once and multiplying with cuBLAS is faster than the fused product (exllamav3's choice: 144)
RECONSTRUCT_ROWS = 144


def linear(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, codebook: int) -> Tensor:
    """x fp16 [rows, in], contiguous -> fp32 [rows, out] (rounded to fp16 where the weight is decoded first)."""
    if x.shape[0] > RECONSTRUCT_ROWS:
        return _reconstructed(x, trellis, suh, svh, codebook).float()
    out = torch.empty(x.shape[0], svh.shape[0], dtype=torch.float32, device=x.device)
    if x.shape[0]:
        ext.load().exl3_gemm(x, trellis, out, suh, torch.empty_like(x), svh, -1, *ext.flags(codebook), 0)
    return out


def _reconstructed(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, codebook: int) -> Tensor:
    """The weight is decoded in the rotated basis into a temporary, 2 * in * out bytes."""
    library = ext.load()
    rotated = torch.empty_like(x)
    library.had_r_128(x, rotated, suh, None, 1.0)
    weight = torch.empty(suh.shape[0], svh.shape[0], dtype=torch.float16, device=x.device)
    library.reconstruct(weight, trellis, trellis.shape[-1] / 16, *ext.flags(codebook))
    out = rotated @ weight
    library.had_r_128(out, out, None, svh, 1.0)
    return out
