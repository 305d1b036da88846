"""The EXL3 format in plain torch: decode, rotate, multiply. Runs on any device; the reference for every other path.

A linear layer [in, out] is stored as `trellis` int16 [in/16, out/16, 16*K] (K bits per weight, 1..8), `suh` fp16 [in]
and `svh` fp16 [out]. Its weight is diag(suh) H inner H diag(svh), where H is the block-diagonal Sylvester-Hadamard
matrix of order 128 over sqrt(128), and `inner` are the decoded tiles.

Decoding equals exllamav3 1.6.5's `reconstruct` bit for bit (results/overlay/).
"""

from functools import lru_cache

import torch
from torch import Tensor

TILE = 16
BLOCK = 128  # the Hadamard transform's order: no slice may cut through it
INST3, MCG, MUL1 = 0, 1, 2
CODEBOOKS = {"3inst": INST3, "mcg": MCG, "mul1": MUL1}
MCG_FACTOR = 0xCBAC1FED
MUL1_FACTOR = 0x83DCD12D
MASK32 = 0xFFFFFFFF


@lru_cache(maxsize=16)
def _positions(device: torch.device) -> Tensor:
    """int64 [256]: where in the bit stream the element at row-major position p of a tile lies.

    The stream is in the order of tensor-core fragments: element lane*8+j is row (lane%4)*2 + (0, 1, 8, 9)[j%4],
    column lane//4 + (8 if j >= 4).
    """
    stream = torch.arange(256)
    lane, j = stream // 8, stream % 8
    row = (lane % 4) * 2 + torch.tensor([0, 1, 8, 9])[j % 4]
    column = lane // 4 + 8 * (j >= 4)
    return torch.argsort(row * TILE + column).to(device)


@lru_cache(maxsize=16)
def _hadamard(device: torch.device) -> Tensor:
    """fp32 [128, 128], symmetric and its own inverse."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < BLOCK:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / BLOCK**0.5).to(device)


def windows(trellis: Tensor) -> Tensor:
    """int16 [..., 16*K] -> int64 [..., 256]: the 16-bit window of each element, in stream order.

    A tile is a circular stream of 256*K bits: its words in swapped pairs, each from its highest bit. The window of
    element t ends at bit (t+1)*K.
    """
    count = trellis.shape[-1]
    words = (trellis.to(torch.int64) & 0xFFFF).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    end = (torch.arange(256, device=trellis.device) + 1) * (count // TILE)
    last = (end - 1) // 16
    pair = (words[..., (last - 1) % count] << 16) | words[..., last]
    return (pair >> ((last + 1) * 16 - end)) & 0xFFFF


def _half(bits: Tensor) -> Tensor:
    """The fp16 values whose bits are the low 16 of `bits`."""
    low = bits & 0xFFFF
    return torch.where(low >= 0x8000, low - 0x10000, low).to(torch.int16).view(torch.float16)


def values(window: Tensor, codebook: int) -> Tensor:
    """int64 16-bit windows -> fp16, the codebook's value for each."""
    if codebook == MUL1:
        product = (window * MUL1_FACTOR) & MASK32
        total = 0x6400 + sum((product >> shift) & 0xFF for shift in (0, 8, 16, 24))
        # one fused multiply-add in fp16: exact in double, rounded once; the factors are fp16 0x1eee and 0xc931
        return (_half(total).double() * 0.00676727294921875 - 10.3828125).to(torch.float16)
    product = window * MCG_FACTOR if codebook == MCG else window * 89226354 + 64248484
    mixed = (product & 0x8FFF8FFF) ^ 0x3B603B60
    return (_half(mixed).float() + _half(mixed >> 16).float()).to(torch.float16)


def inner(trellis: Tensor, codebook: int) -> Tensor:
    """int16 [..., in/16, out/16, 16*K] -> fp16 [..., in, out] in the rotated basis."""
    tiles = values(windows(trellis), codebook)[..., _positions(trellis.device)]
    return tiles.unflatten(-1, (TILE, TILE)).transpose(-3, -2).flatten(-4, -3).flatten(-2, -1)


def rotate(x: Tensor) -> Tensor:
    """x fp32 [..., n], n a multiple of 128 -> the same, each block of 128 times the Hadamard matrix."""
    return (x.unflatten(-1, (-1, BLOCK)) @ _hadamard(x.device)).flatten(-2)


def weight(trellis: Tensor, suh: Tensor, svh: Tensor, codebook: int) -> Tensor:
    """fp32 [in, out] in the original basis: what a dense checkpoint would hold, transposed."""
    left = rotate(inner(trellis, codebook).float().transpose(-2, -1)).transpose(-2, -1) * suh.float().unsqueeze(-1)
    return rotate(left) * svh.float().unsqueeze(-2)


def linear(x: Tensor, trellis: Tensor, suh: Tensor, svh: Tensor, codebook: int) -> Tensor:
    """x [..., rows, in] -> fp32 [..., rows, out]. Leading dimensions are those of the weights (one per expert)."""
    rotated = rotate(x.float() * suh.float().unsqueeze(-2)) @ inner(trellis, codebook).float()
    return rotate(rotated) * svh.float().unsqueeze(-2)
