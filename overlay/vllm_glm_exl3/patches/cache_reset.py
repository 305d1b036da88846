"""GLM53_EXPOSE_CACHE_RESET=1: POST /reset_prefix_cache, /reset_mm_cache and /reset_encoder_cache, for measurements that need a cold cache.

vLLM has these routes in its developer mode only, together with some that run code in the workers. They ask for no key, in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_EXPOSE_CACHE_RESET=0"
EXPECTED = "da32cde25217a6c2"


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_EXPOSE_CACHE_RESET", "0")


def apply(environment: Mapping[str, str]) -> None:
    from vllm.entrypoints import serve

    guard.replace(serve, "register_vllm_serve_api_routers", EXPECTED, SWITCH, with_cache_routes)


def with_cache_routes(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def register_vllm_serve_api_routers(app: Any) -> None:
        from vllm.entrypoints.serve.dev.cache.api_router import attach_router

        original(app)
        attach_router(app)

    return register_vllm_serve_api_routers
