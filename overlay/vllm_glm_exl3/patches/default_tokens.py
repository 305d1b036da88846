"""DEFAULT_MAX_NEW_TOKENS: the longest answer of a request that names no limit. Without it such a request may fill the whole context.

vLLM's own way, max_new_tokens in --override-generation-config, is also a ceiling for requests that do name a limit.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

VARIABLE = "DEFAULT_MAX_NEW_TOKENS"
SWITCH = f"{VARIABLE}="
EXPECTED = "71880b8edc2b9d72"
MOST = 1_000_000
NOT_A_CEILING = ("auto", "vllm")  # of any other --generation-config vLLM makes the limit a ceiling


def tokens(environment: Mapping[str, str]) -> int | None:
    """None: vLLM's own. Raises ValueError for anything but a whole number from 1 to MOST."""
    value = environment.get(VARIABLE) or ""
    if not value:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MOST:
        raise ValueError(f"{VARIABLE}={value!r}: must be a whole number from 1 to {MOST}, or empty")
    return int(value)


def wanted(environment: Mapping[str, str]) -> bool:
    return tokens(environment) is not None


def apply(environment: Mapping[str, str]) -> None:
    from vllm.config import ModelConfig

    count = tokens(environment)
    if count is not None:
        guard.replace(ModelConfig, "get_diff_sampling_param", EXPECTED, SWITCH, lambda original: with_default(original, count))


def with_default(original: Callable[[Any], dict[str, Any]], count: int) -> Callable[[Any], dict[str, Any]]:
    """max_tokens in the defaults is what vLLM gives a request without one; max_new_tokens given in the override stays."""

    def get_diff_sampling_param(self: Any) -> dict[str, Any]:
        found = original(self)
        if "max_new_tokens" in (self.override_generation_config or {}):
            return found
        if self.generation_config not in NOT_A_CEILING:
            raise ValueError(f"{VARIABLE} would limit every request with --generation-config {self.generation_config}: use auto or vllm")
        return {**found, "max_tokens": count}

    return get_diff_sampling_param
