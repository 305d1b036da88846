"""Which execution path a layer takes, decided once, when its weights are there."""

from vllm_glm_exl3 import ext, moe_fused
from vllm_glm_exl3.errors import NoPath

# The kernels cap silu(gate) at the limit, vLLM's SiluAndMulWithClamp caps gate: they differ by at most limit * sigmoid(-limit),
# which is 1.5e-2 of 6 and 9e-5 of 12. Below this limit the difference would show.
LEAST_LIMIT = 6.0


def choose(wanted: str, codebook: int, limit: float, cuda: bool, graphs: bool = False) -> str:
    """ "fused", "loop" or "torch" for `wanted` (also "auto"), a layer's codebook, swiglu limit and device. Raises NoPath, saying why.

    auto: on a GPU the fused kernels, or the loop where they cannot do a layer; elsewhere torch. graphs: the engine captures CUDA graphs,
    which only the fused path can be part of: the others wait for the GPU to learn how many tokens each expert has.
    """
    if not cuda:
        return _on_cpu(wanted)
    if wanted == "torch":
        return _alone(wanted, "EXL3_MOE_PATH=torch", graphs)
    ext.load()
    unable = _why_not_fused(codebook, limit)
    if unable and wanted == "fused":
        raise NoPath(f"EXL3_MOE_PATH=fused: {unable}; use auto, with --enforce-eager")
    return _alone("loop", unable or "EXL3_MOE_PATH=loop", graphs) if unable or wanted == "loop" else "fused"


def _alone(path: str, why: str, graphs: bool) -> str:
    if graphs:
        raise NoPath(f"experts by the {path} path ({why}) cannot be in CUDA graphs; --enforce-eager (ENFORCE_EAGER=1) goes without them")
    return path


def _why_not_fused(codebook: int, limit: float) -> str:
    if codebook not in moe_fused.CODEBOOKS:
        return "exl3_moe has no instance for codebook 3inst"
    if 0 < limit < LEAST_LIMIT:
        return f"its kernels apply a swiglu limit of {limit:g} differently from the model"
    return ""


def _on_cpu(wanted: str) -> str:
    if wanted in ("auto", "torch"):
        return "torch"
    raise NoPath(f"EXL3_MOE_PATH={wanted} needs a CUDA device; use auto or torch here")
