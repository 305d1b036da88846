"""VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 leaves the trial capture out: vLLM makes it all the same and throws the number away."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

VARIABLE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
SWITCH = f"{VARIABLE}=1"
EXPECTED = {"vllm.v1.worker.gpu_model_runner": "57561ab4aac48af7", "vllm.v1.worker.gpu.model_runner": "b4ec9cf456bd57fb"}


def wanted(environment: Mapping[str, str]) -> bool:
    if environment.get(VARIABLE) != "0":
        return False
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def apply(environment: Mapping[str, str]) -> None:
    from vllm.v1.worker import gpu_model_runner as first
    from vllm.v1.worker.gpu import model_runner as second

    for module in (first, second):
        guard.replace(module.GPUModelRunner, "profile_cudagraph_memory", EXPECTED[module.__name__], SWITCH, unasked)


def unasked(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def profile_cudagraph_memory(self: Any) -> int:
        """0 bytes: the estimate was not asked for."""
        return 0

    return profile_cudagraph_memory
