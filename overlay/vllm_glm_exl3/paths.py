"""Which execution path a layer takes, decided once, when its weights are there."""

from vllm_glm_exl3 import codec, ext, moe_fused
from vllm_glm_exl3.errors import NoPath


def choose(wanted: str, codebook: int, cuda: bool) -> str:
    """"fused", "loop" or "torch" for `wanted` (also "auto"), a layer's codebook and device. Raises NoPath, saying why.

    auto: on a GPU the fused kernel, or the loop for a codebook that it has no instance for; elsewhere torch.
    """
    if not cuda:
        return _on_cpu(wanted)
    if wanted == "torch":
        return wanted
    ext.load()
    if codebook in moe_fused.CODEBOOKS:
        return "fused" if wanted == "auto" else wanted
    if wanted == "fused":
        names = {number: name for name, number in codec.CODEBOOKS.items()}
        raise NoPath(f"EXL3_MOE_PATH=fused: exl3_moe has no instance for codebook {names[codebook]}; use auto, with --enforce-eager")
    return "loop"


def _on_cpu(wanted: str) -> str:
    if wanted in ("auto", "torch"):
        return "torch"
    raise NoPath(f"EXL3_MOE_PATH={wanted} needs a CUDA device; use auto or torch here")
