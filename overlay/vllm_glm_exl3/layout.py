"""Which part of a stored tensor a rank holds. Pure arithmetic on shapes."""

from dataclasses import dataclass

from torch import Tensor

from vllm_glm_exl3.codec import BLOCK, TILE
from vllm_glm_exl3.errors import BadSlice, UnknownPack

# (kind of tensor, the weight's dimension that is split) -> the tensor's own dimension; absent: every rank holds all of it
SPLIT_DIM = {("trellis", "in"): 0, ("suh", "in"): 0, ("trellis", "out"): 1, ("svh", "out"): 0}


@dataclass(frozen=True)
class Slice:
    """Rank `rank` of `size` equal parts along `along` ("in", "out", or "" for the whole)."""

    along: str = ""
    rank: int = 0
    size: int = 1


def bits_of(trellis: Tensor, name: str) -> int:
    """K, from the width of a stored trellis. Raises UnknownPack for other shapes and for fractional K."""
    if trellis.ndim != 3 or trellis.shape[-1] % 8:
        raise UnknownPack(f"{name}: shape {list(trellis.shape)} is no EXL3 trellis [in/16, out/16, 16*K]")
    check_bits(trellis.shape[-1] / TILE, name)
    return int(trellis.shape[-1]) // TILE


def check_bits(bits: float, name: str) -> int:
    """`bits` as a whole number from 1 to 8; raises UnknownPack otherwise."""
    if int(bits) != bits or not 1 <= bits <= 8:
        kind = "fractional K" if int(bits) != bits else "K outside 1..8"
        raise UnknownPack(f"{name}: {kind} ({bits:g} bits per weight) is not supported; use a pack with a whole K from 1 to 8")
    return int(bits)


def part_size(total: int, size: int, name: str) -> int:
    """`total` / `size`, which must be whole blocks of 128: a rotation cannot cross ranks. Raises BadSlice."""
    if total % (size * BLOCK):
        what = f"does not divide into {size} parts of whole 128-blocks" if size > 1 else "is not whole 128-blocks"
        raise BadSlice(
            f"{name}: {total} {what}, which EXL3's rotation needs; "
            f"try another tensor parallel size, or expert parallelism (--enable-expert-parallel) for routed experts"
        )
    return total // size


def take(tensor: Tensor, kind: str, part: Slice, name: str) -> Tensor:
    """The rank's view of a stored `kind` ("trellis", "suh", "svh"). Raises BadSlice, naming the tensor and its shape."""
    dim = SPLIT_DIM.get((kind, part.along))
    if dim is None or part.size == 1:
        return tensor
    unit = TILE if kind == "trellis" else 1
    width = part_size(tensor.shape[dim] * unit, part.size, f"{name} of shape {list(tensor.shape)}") // unit
    return tensor.narrow(dim, part.rank * width, width)


def put(target: Tensor, stored: Tensor, name: str) -> None:
    """Copy `stored` into `target` without conversion. Raises UnknownPack if type or shape differ."""
    if stored.dtype != target.dtype or stored.shape != target.shape:
        raise UnknownPack(
            f"{name}: stored as {stored.dtype} {list(stored.shape)} (this rank's part), "
            f"while the model's configuration calls for {target.dtype} {list(target.shape)}"
        )
    target.copy_(stored)
