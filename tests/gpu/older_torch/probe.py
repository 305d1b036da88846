"""Does DeepGEMM load and compute here? Exit 0 and the relative error of its logits, else the reason; it may also crash, so ask a process.

python probe.py        # with this folder on PYTHONPATH
"""

import sys

import deep_gemm
import torch

ALLOWED = 1e-2


def error() -> float:
    """fp8_fp4_mqa_logits of 64 queries, 32 heads, 256 keys against fp32: sum over heads of weight * relu(q k), keys' scales applied."""
    torch.manual_seed(0)
    q, k = torch.randn(64, 32, 128, device="cuda"), torch.randn(256, 128, device="cuda")
    q8, k8 = q.to(torch.float8_e4m3fn), k.to(torch.float8_e4m3fn)
    scale, weights = torch.rand(256, device="cuda") + 0.5, torch.randn(64, 32, device="cuda")
    start = torch.zeros(64, dtype=torch.int32, device="cuda")
    end = torch.full((64,), 256, dtype=torch.int32, device="cuda")
    found = deep_gemm.fp8_fp4_mqa_logits((q8, None), (k8, scale), weights, start, end, clean_logits=False)[:, :256]
    scores = torch.einsum("qhd,kd->qhk", q8.float(), k8.float()).relu()
    wanted = torch.einsum("qhk,qh->qk", scores, weights) * scale
    return float((found.float() - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    if not deep_gemm.LOADED:
        sys.exit(f"DeepGEMM does not load: {deep_gemm.REASON}")
    print(deep_gemm.get_paged_mqa_logits_metadata(torch.full((4, 1), 70, dtype=torch.int32, device="cuda"), 64, 132).shape)
    found = error()
    print("fp8_fp4_mqa_logits: relative error", found)
    sys.exit(not found <= ALLOWED)
