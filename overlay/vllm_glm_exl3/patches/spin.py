"""How long a worker polls shared memory before it sleeps: vLLM's second keeps a core busy between requests and takes heat from the GPU.

GLM53_SPINWAIT_MS: milliseconds from 1 to 1000, or "stock".
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_SPINWAIT_MS=stock"
EXPECTED = "bce0af9288aa3387"


def milliseconds(environment: Mapping[str, str]) -> int | None:
    """None: vLLM's own. Raises ValueError for anything but "stock" or 1..1000."""
    value = environment.get("GLM53_SPINWAIT_MS") or "stock"
    if value == "stock":
        return None
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise ValueError(f"GLM53_SPINWAIT_MS={value!r}: must be stock, or milliseconds from 1 to 1000")
    return int(value)


def wanted(environment: Mapping[str, str]) -> bool:
    return milliseconds(environment) is not None


def apply(environment: Mapping[str, str]) -> None:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    seconds = (milliseconds(environment) or 1000) / 1000
    guard.replace(SpinCondition, "__init__", EXPECTED, SWITCH, lambda original: with_seconds(original, seconds))


def with_seconds(original: Callable[..., None], seconds: float) -> Callable[..., None]:
    def __init__(self: Any, is_reader: bool, context: Any, notify_address: str, busy_loop_s: float = seconds) -> None:  # noqa: N807
        original(self, is_reader, context, notify_address, busy_loop_s)

    return __init__
