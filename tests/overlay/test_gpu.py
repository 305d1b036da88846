"""The GPU's checks as tests; timings and the receipt: python -m tests.overlay.gpu_checks."""

import pytest
import torch
from vllm_glm_exl3 import ext

from tests.overlay import gpu_checks, gpu_layers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available() or not ext.available(), reason="needs a CUDA device and exllamav3_ext"),
]
PARTS = (
    gpu_checks.decode, gpu_checks.linear, gpu_checks.joined_linear, gpu_checks.other_packs, gpu_checks.crowded,
    gpu_checks.half_of_the_experts, gpu_checks.graphs, gpu_checks.same_bits,
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_checks(part: gpu_checks.Part) -> None:
    assert [row for row in part() if not row[1] <= row[2]] == []


@pytest.mark.parametrize("inner", gpu_layers.INNERS)
def test_glm_geometry(inner: int) -> None:
    assert [row for row in gpu_checks.experts(inner, gpu_checks.TOKENS) if not row[1] <= row[2]] == []


def test_nothing_is_expanded_while_loading() -> None:
    found = gpu_checks.loading()
    assert found["peak_bytes"] < 1.05 * found["packed_bytes"] < 0.3 * found["bf16_bytes"]
