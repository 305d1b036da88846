"""The indexer's logits in torch (tests/gpu/older_torch), against the formula written out, on pages as vLLM lays them."""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

FILE = Path(__file__).parents[1] / "gpu/older_torch/deep_gemm.py"
spec = importlib.util.spec_from_file_location("older_torch_deep_gemm", FILE)
assert spec is not None
assert spec.loader is not None
deep_gemm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(deep_gemm)

WIDTH, BLOCK, BLOCKS, HEADS, GAP = 128, 64, 6, 32, 100


def one(query: Tensor, key: Tensor, scale: Tensor, weight: Tensor) -> float:
    """Sum over heads of weight * relu(q . k), times the key's scale."""
    return float(sum(weight[head] * max(0.0, float(query[head].double() @ key.double())) for head in range(HEADS)) * scale)


def test_without_pages() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(3, HEADS, WIDTH).to(torch.float8_e4m3fn), torch.randn(5, WIDTH).to(torch.float8_e4m3fn)
    scale, weights = torch.rand(5) + 0.5, torch.randn(3, HEADS)
    found = deep_gemm.fp8_fp4_mqa_logits(
        (q, None), (k, scale), weights, torch.tensor([0, 1, 0]), torch.tensor([5, 4, 0]), clean_logits=False
    )
    assert found.isinf().tolist() == [[False] * 5, [True, False, False, False, True], [True] * 5]
    for row, column in ((0, 0), (0, 4), (1, 1), (1, 3)):
        wanted = one(q[row].float(), k[column].float(), scale[column], weights[row])
        assert abs(float(found[row, column]) - wanted) < 1e-4 * max(1.0, abs(wanted))


def paged(keys: Tensor, scales: Tensor) -> Tensor:
    """uint8 [blocks, block, 1, width + 4] over pages that are further apart than they are long: keys first, then scales."""
    memory = torch.zeros(BLOCKS, BLOCK * (WIDTH + 4) + GAP, dtype=torch.uint8)
    memory[:, : BLOCK * WIDTH] = keys.view(torch.uint8).view(BLOCKS, -1)
    memory[:, BLOCK * WIDTH : BLOCK * (WIDTH + 4)] = scales.view(torch.uint8).view(BLOCKS, -1)
    return memory.as_strided((BLOCKS, BLOCK, 1, WIDTH + 4), (memory.shape[1], WIDTH + 4, WIDTH + 4, 1))


def test_with_pages() -> None:
    torch.manual_seed(0)
    keys, scales = torch.randn(BLOCKS * BLOCK, WIDTH).to(torch.float8_e4m3fn), torch.rand(BLOCKS * BLOCK) + 0.5
    q, weights = torch.randn(2, 2, HEADS, WIDTH).to(torch.float8_e4m3fn), torch.randn(4, HEADS)
    tables, lengths = torch.tensor([[3, 1, 0], [5, 4, 2]]), torch.tensor([[70, 71], [130, 131]])
    found = deep_gemm.fp8_fp4_paged_mqa_logits((q, None), paged(keys, scales), weights, lengths, tables, None, 192, clean_logits=False)
    assert found.isfinite().sum(1).tolist() == [70, 71, 130, 131]
    for row, place, key in ((0, 0, 3 * BLOCK), (1, 70, BLOCK + 6), (2, 129, 2 * BLOCK + 1), (3, 64, 4 * BLOCK)):
        wanted = one(q[row // 2, row % 2].float(), keys[key].float(), scales[key], weights[row])
        assert abs(float(found[row, place]) - wanted) < 1e-4 * max(1.0, abs(wanted))
