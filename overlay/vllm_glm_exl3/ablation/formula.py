"""The edit and its figures, in torch alone. Nothing here knows of vLLM; the weight may be one rank's columns of a larger one.

Weights are [out, in] as torch.nn.Linear has them; the direction lives in the output space, [out].
"""

import math
import re

import torch
from torch import Tensor

from vllm_glm_exl3.errors import BadAblation

EDITABLE = (torch.float32, torch.bfloat16, torch.float16)
COLUMNS = 1024  # at a time: what is held beside the weight is 4 * out * this, 16 MiB for 4096 rows


def vector(direction: Tensor) -> Tensor:
    """fp32 [hidden], of a direction [hidden] or [1, hidden] of any length. Raises BadAblation for another rank, and for a zero or
    non-finite one."""
    flat = direction.detach().float()
    if flat.dim() == 2 and flat.shape[0] == 1:
        flat = flat[0]
    if flat.dim() != 1 or not flat.numel():
        raise BadAblation(f"a direction is [hidden] or [1, hidden], and this one is {list(direction.shape)}")
    if not bool(flat.isfinite().all()):
        raise BadAblation("the direction has values that are not finite")
    if not squared_norm(flat) > 0:
        raise BadAblation("the direction is zero")
    return flat


def squared_norm(direction: Tensor) -> float:
    """Of a [hidden] tensor, summed exactly: the same on every device and with any number of threads."""
    return math.fsum(value * value for value in direction.double().tolist())


def unit(direction: Tensor) -> Tensor:
    """fp32 [hidden], of length 1. Raises BadAblation as `vector` does."""
    flat = vector(direction)
    return (flat.double() / math.sqrt(squared_norm(flat))).float()


def project(weight: Tensor, direction: Tensor, alpha: float) -> Tensor:
    """(I - alpha r r^T / |r|^2) W in fp32, rounded once to the weight's dtype; a new tensor. alpha 0 gives the same bytes.

    Each column depends on nothing but itself, to the last bit: all sums are elementwise adds of rows in a fixed order. So a rank's
    part is byte for byte the part of the whole edit, and a CPU and a GPU agree. Raises BadAblation.
    """
    r = _checked(weight, direction)
    if not math.isfinite(alpha):
        raise BadAblation(f"alpha {alpha} is not finite")
    edited = weight.detach().clone()
    if alpha == 0:
        return edited
    factor = (r.double() * (alpha / squared_norm(r))).float().unsqueeze(1)
    for part in edited.split(COLUMNS, 1):
        wide = part.float()
        part.copy_(wide - factor * component(wide, r))
    return edited


def component(weight: Tensor, direction: Tensor) -> Tensor:
    """r^T W of fp32 [out, in] and [out] -> fp32 [in], halving the rows until one is left."""
    rows = weight * direction.unsqueeze(1)
    while rows.shape[0] > 1:
        half = rows.shape[0] // 2
        rows = torch.cat([rows[:half] + rows[half : 2 * half], rows[2 * half :]])
    return rows[0]


def signed_ratio(before: Tensor, after: Tensor, direction: Tensor) -> float:
    """(r^T W').(r^T W) / |r^T W|^2, in fp64: 1 - alpha where the edit was made once. Raises BadAblation where r^T W is zero."""
    r = _checked(before, direction).double()
    pairs = [(r @ old.double(), r @ new.double()) for old, new in _parts(before, after)]
    whole = math.fsum(float(old @ old) for old, _ in pairs)
    if not whole > 0:
        raise BadAblation("the weight has no component along the direction")
    return math.fsum(float(old @ new) for old, new in pairs) / whole


def relative_change(before: Tensor, after: Tensor) -> float:
    """|W' - W| / |W|, Frobenius norms in fp64; of two tensors of one shape."""
    pairs = [(old.double(), new.double()) for old, new in _parts(before, after)]
    change = math.fsum(float((new - old).square().sum()) for old, new in pairs)
    return math.sqrt(change / math.fsum(float(old.square().sum()) for old, _ in pairs))


def _parts(before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    if before.shape != after.shape:
        raise BadAblation(f"the weight was {list(before.shape)} and is {list(after.shape)}")
    return list(zip(before.split(COLUMNS, 1), after.split(COLUMNS, 1), strict=True))


def _checked(weight: Tensor, direction: Tensor) -> Tensor:
    """The direction on the weight's device, if the two fit."""
    r = vector(direction).to(weight.device)
    if weight.dim() != 2 or weight.dtype not in EDITABLE:
        raise BadAblation(f"only 2-D float32, bfloat16 and float16 weights can be edited; this one is {weight.dtype} {list(weight.shape)}")
    if weight.shape[0] != r.shape[0]:
        raise BadAblation(f"the direction has {r.shape[0]} values, and the weight {weight.shape[0]} rows")
    return r


def layers(text: str, count: int) -> tuple[int, ...]:
    """Layer numbers of "15-44" or "1,3,5-7" (ranges include both ends), in order, each once; `count`: how many layers there are.

    Raises BadAblation for anything empty, inverted, not below `count`, or not a number.
    """
    found: set[int] = set()
    for word in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", word, re.ASCII)
        if not ends:
            raise BadAblation(f"layers {text!r}: {word.strip()!r} is neither a number nor a range like 15-44")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if first > last:
            raise BadAblation(f"layers {text!r}: {first}-{last} is empty; write {last}-{first}")
        if last >= count:
            raise BadAblation(f"layers {text!r}: there is no layer {last}, the last of {count} is {count - 1}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))
