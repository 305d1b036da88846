"""What is edited and how strongly: values only. The arithmetic is the overlay's (vllm_glm_exl3.ablation.formula)."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Literal

import pydantic

from bench.errors import BadRequest
from bench.receipt import canonical

Target = Literal["o_proj", "down_proj"]


class Value(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Kernel(Value):
    """Alpha by layer: x in a straight line to `floor` times it at a distance of `reach` layers, zero beyond."""

    peak: float
    reach: float = pydantic.Field(gt=0)
    floor: float = pydantic.Field(ge=0, le=1)

    def weight(self, layer: int) -> float:
        away = abs(layer - self.peak) / self.reach
        return 0.0 if away > 1 else 1 - away * (1 - self.floor)


class EditSpec(Value):
    """`direction`: sha256 of its file, or "random-SEED" for a control; `layers`: which, in order, each once."""

    direction: str
    layers: tuple[int, ...] = pydantic.Field(min_length=1)
    alpha: float = pydantic.Field(ge=0)
    kernel: Kernel | None = None
    targets: tuple[Target, ...] = ("o_proj",)

    def alpha_of(self, layer: int) -> float:
        return self.alpha * (self.kernel.weight(layer) if self.kernel else 1.0)

    @property
    def is_null(self) -> bool:
        return all(self.alpha_of(layer) == 0 for layer in self.layers)

    @property
    def id(self) -> str:
        """Twelve hex digits of the spec's content."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()[:12]


def alphas(text: str) -> tuple[float, ...]:
    """`0,1,2.5`. Raises BadRequest unless all are finite and at least 0."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadRequest(f"--alphas is {text!r}: numbers are wanted\ntry: 0,1,2,3") from None
    if not all(math.isfinite(value) and value >= 0 for value in found):
        raise BadRequest(f"--alphas is {text!r}: an alpha is finite and at least 0\ntry: 0,1,2,3")
    return found


def kernel(text: str) -> Kernel:
    """`PEAK,REACH,FLOOR`, such as `18,10,0.2`. Raises BadRequest."""
    try:
        peak, reach, floor = (float(part) for part in text.split(","))
        return Kernel(peak=peak, reach=reach, floor=floor)
    except ValueError:  # pydantic's is one
        wanted = "PEAK,REACH,FLOOR are wanted: a layer, a distance in layers above 0, and a share of 0 to 1"
        raise BadRequest(f"--kernel is {text!r}: {wanted}\ntry: 18,10,0.2") from None


def layers(text: str, count: int) -> tuple[int, ...]:
    """Layer numbers of `10-29` or `1,3,5-7` (ranges include both ends), in order, each once. The overlay reads ABLIT_LAYERS the same way
    (vllm_glm_exl3.ablation.formula.layers; a test compares them), but needs torch for it.

    Raises BadRequest for anything empty, inverted, not below `count`, or not a number.
    """
    found: set[int] = set()
    for word in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", word, re.ASCII)
        if not ends:
            raise BadRequest(f"--layers: layers {text!r}: {word.strip()!r} is neither a number nor a range like 15-44")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if first > last:
            raise BadRequest(f"--layers: layers {text!r}: {first}-{last} is empty; write {last}-{first}")
        if last >= count:
            raise BadRequest(f"--layers: layers {text!r}: there is no layer {last}, the last of {count} is {count - 1}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def shown(numbers: Sequence[int]) -> str:
    """(1, 2, 3, 7) -> `1-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
