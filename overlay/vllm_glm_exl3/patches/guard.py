"""Replace one function of vLLM, if it is still the function that the replacement was written against."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

MARK = "__vllm_glm_exl3__"


class Mismatch(RuntimeError):
    """vLLM's function is not the one that a patch was written against."""


def source_sha256(function: Callable[..., Any]) -> str:
    """Of the function's text, decorators included; the first 16 digits."""
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]


def replace(owner: Any, name: str, expected: str, switch: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Set owner.name to make(original). `expected`: source_sha256 of the original; `switch`: what to set to go without.

    Nothing happens if it has been done. Raises Mismatch.
    """
    found = inspect.getattr_static(owner, name)
    original = _plain(found)
    if hasattr(original, MARK):
        return
    check(owner, name, expected, switch)
    new = make(original)
    setattr(new, MARK, True)
    new.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, name, type(found)(new) if isinstance(found, (classmethod, staticmethod)) else new)


def check(owner: Any, name: str, expected: str, switch: str) -> None:
    """Raise Mismatch unless owner.name (a class's or a module's) has the source with the digest `expected`."""
    digest = source_sha256(_plain(inspect.getattr_static(owner, name)))
    if digest != expected:
        where = ".".join([getattr(owner, "__module__", ""), getattr(owner, "__qualname__", owner.__name__), name]).lstrip(".")
        raise Mismatch(
            f"{where} has source {digest}, and this patch is for {expected} (vLLM 0.32.0): {switch} leaves the patch out, at your own risk"
        )


def _plain(found: Any) -> Any:
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def flag(environment: Mapping[str, str], name: str, default: str) -> bool:
    """A 0/1 variable; empty counts as unset. Raises ValueError for anything else."""
    value = environment.get(name) or default
    if value not in ("0", "1"):
        raise ValueError(f"{name}={value!r}: must be 0 or 1")
    return value == "1"
