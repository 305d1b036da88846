"""Environment variables that this plugin reads; the same on every rank. Names are those of the public recipe where it has one."""

import os
from dataclasses import dataclass

from vllm_glm_exl3.errors import Exl3Error

PATHS = ("auto", "fused", "loop", "torch")
# A step of 7168 tokens gives each of 288 experts 199 on average. 256 and 512 are equally fast when the router spreads them evenly, 128 is
# 2.2 times slower (results/overlay/h200-paths-2026-11-29.json, "prefill"); 512 leaves room for experts that get more than their share.
ROWS, MOST_ROWS = 512, 4096


@dataclass(frozen=True)
class Settings:
    """`path`: how experts run; `rows`: tokens per expert that the fused kernel takes; `deterministic`: sum in a fixed order."""

    path: str = "auto"
    rows: int = ROWS
    deterministic: bool = False


def read(environment: "os._Environ[str] | dict[str, str]" = os.environ) -> Settings:
    """EXL3_MOE_PATH (auto, fused, loop, torch), EXL3_FUSED_MOE (0 = loop), EXL3_TEMP_ROWS_FUSED (1..4096), EXL3_DETERMINISTIC.

    Raises Exl3Error for any other value; an empty one counts as unset.
    """
    path = _one_of("EXL3_MOE_PATH", environment.get("EXL3_MOE_PATH") or "auto", PATHS)
    fused = _one_of("EXL3_FUSED_MOE", environment.get("EXL3_FUSED_MOE") or "1", ("0", "1"))
    exact = _one_of("EXL3_DETERMINISTIC", environment.get("EXL3_DETERMINISTIC") or "0", ("0", "1"))
    if fused == "0" and path == "auto":
        path = "loop"
    return Settings(path, _rows(environment.get("EXL3_TEMP_ROWS_FUSED") or str(ROWS)), exact == "1")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise Exl3Error(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    return value


def _rows(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= MOST_ROWS:
        raise Exl3Error(f"EXL3_TEMP_ROWS_FUSED={value!r}: must be a whole number from 1 to {MOST_ROWS}")
    return int(value)
