"""No programmatic dependent launch on SM12x (GB10, RTX 50): vLLM turns it on for every GPU from Hopper on.

The public recipe found kernels there reading what the one before had not written. Whether vLLM 0.32 still has that race on a GB10 was
not checked (there is none here); EXL3_PDL_SM12X=1 gives vLLM's own behaviour back.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "EXL3_PDL_SM12X=1"
EXPECTED = "f5072f19dce0c436"


def wanted(environment: Mapping[str, str]) -> bool:
    if guard.flag(environment, "EXL3_PDL_SM12X", "0"):
        return False
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def apply(environment: Mapping[str, str]) -> None:
    from vllm.platforms.cuda import CudaPlatformBase

    guard.replace(CudaPlatformBase, "is_arch_support_pdl", EXPECTED, SWITCH, without_sm12)


def without_sm12(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`original` (a classmethod's function), but False on devices of compute capability 12.x."""

    def is_arch_support_pdl(cls: Any) -> bool:
        import torch

        if not original(cls):
            return False
        return int(torch.cuda.get_device_capability(torch.cuda.current_device())[0]) != 12

    return is_arch_support_pdl
