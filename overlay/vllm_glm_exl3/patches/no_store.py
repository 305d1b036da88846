"""A request that leaves nothing in the prefix cache: `"vllm_xargs": {"no_store": 1}` in its body. vLLM can only skip reading.

For prompts that never come again (benchmarks, one-off documents), which otherwise push out what does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_APC_NO_STORE=0"
EXPECTED = "8a801b2adf06ab1a"
KEY = "no_store"


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_APC_NO_STORE", "1")


def apply(environment: Mapping[str, str]) -> None:
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    guard.replace(KVCacheCoordinator, "cache_blocks", EXPECTED, SWITCH, unless_no_store)


def unless_no_store(original: Callable[..., None]) -> Callable[..., None]:
    def cache_blocks(self: Any, request: Any, num_computed_tokens: int) -> None:
        if not asks(request):
            original(self, request, num_computed_tokens)

    return cache_blocks


def asks(request: Any) -> bool:
    """The request's sampling parameters carry no_store with a true value."""
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    return str(extra.get(KEY, "")).lower() in ("1", "true")
