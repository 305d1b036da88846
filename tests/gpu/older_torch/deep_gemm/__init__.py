"""vLLM takes a package of this name before its own copy of DeepGEMM: this is that copy, loaded with what torch 2.11 lacks.

If it does not load, only the schedule that every decode step asks for is given (it is used beyond index_topk tokens alone); a longer
context then fails with vLLM's own error. `LOADED` says which.
"""

import ctypes
import os
import sys

import torch

try:
    if os.environ.get("OLDER_TORCH_DEEP_GEMM") == "0":
        raise ImportError("left out by OLDER_TORCH_DEEP_GEMM=0")
    ctypes.CDLL(os.path.join(os.path.dirname(os.path.dirname(__file__)), "libsymbols.so"), ctypes.RTLD_GLOBAL)
    import vllm.third_party.deep_gemm as real

    real.LOADED = True
    sys.modules[__name__] = real
except (ImportError, OSError, RuntimeError) as reason:
    LOADED = False
    REASON = repr(reason)

    def get_paged_mqa_logits_metadata(context_lens: torch.Tensor, block_size: int, slots: int, **_: object) -> torch.Tensor:
        """int32 [slots + 1, 2] of zeros: read by kernels that this package does not have."""
        return torch.zeros(slots + 1, 2, dtype=torch.int32, device=context_lens.device)
