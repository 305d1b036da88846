"""The door to exllamav3_ext, exllamav3's CUDA extension: needed for speed on a GPU, absent on a CPU."""

import importlib
import os
from functools import lru_cache
from types import ModuleType

from vllm_glm_exl3 import codec
from vllm_glm_exl3.errors import NoPath

# what is called here, in 1.6.5; a build without one of them is refused
NEEDED = ("exl3_moe", "exl3_moe_max_concurrency", "exl3_moe_gather", "exl3_moe_coop", "exl3_gemm", "reconstruct", "had_r_128")


@lru_cache(maxsize=1)
def load() -> ModuleType:
    """The extension. Raises NoPath, saying why, if it is not there or is another version than the calls here are for.

    exl3_gemm rounds activations to int8 for single rows of the mul1 codebook unless told not to; the error is 7e-3 instead of 6e-4
    (results/overlay/).
    """
    os.environ.setdefault("EXL3_INT8_GEMV", "0")
    try:
        ext = importlib.import_module("exllamav3_ext")
    except ImportError as absent:
        raise NoPath(
            f"exllamav3_ext cannot be imported ({absent}); build it from exllamav3 1.6.5's sources for this torch and GPU"
        ) from absent
    if lacking := [name for name in NEEDED if not hasattr(ext, name)]:
        raise NoPath(f"exllamav3_ext lacks {', '.join(lacking)}: it is not the build of exllamav3 1.6.5 that this plugin calls")
    return ext


def available() -> bool:
    try:
        load()
    except NoPath:
        return False
    return True


def flags(codebook: int) -> tuple[bool, bool]:
    """(mcg, mul1), as its functions take the codebook."""
    return codebook == codec.MCG, codebook == codec.MUL1
