"""Editing a loaded model in place: every layer of the range, or an error. Torch alone; a model is anything with named modules."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vllm_glm_exl3.ablation import direction as directions
from vllm_glm_exl3.ablation import formula, settings, transplant
from vllm_glm_exl3.errors import BadAblation

O_PROJ = re.compile(r"(?:^|\.)layers\.(\d+)\.(mtp_block\.)?self_attn\.o_proj$")
MARK = "ablated"
# of the signed ratio, in parts of alpha: rounding to 8 bits of mantissa moved it by 1e-4 (576 rows), fp32 by 1e-7
NEAR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Target:
    """One o_proj on this rank: `weight` [out, in of this rank], columns of [out, in] that begin at `first`."""

    layer: int
    name: str
    module: nn.Module
    weight: Tensor
    first: int
    whole: int


@dataclass(frozen=True)
class Change:
    """What was done to one layer on this rank. `ratio` is 1 - alpha, and None for a transplant; sha256 of this rank's bytes."""

    layer: int
    ratio: float | None
    rel_l2: float
    sha256_before: str
    sha256_after: str


@dataclass(frozen=True)
class Summary:
    """What one rank did to one part, "model" or "mtp". `source`: sha256 of the direction file or the manifest. Ranges are [least, most]."""

    rank: int
    world: int
    part: str
    method: str
    alpha: float | None
    layers: str
    source: str
    ratio: tuple[float, float] | None
    rel_l2: tuple[float, float]

    def line(self) -> str:
        """JSON on one line, under 400 characters for any range without gaps."""
        return json.dumps(asdict(self), separators=(",", ":"))


class Method(ABC):
    """How a weight is changed. `source`: sha256 of the direction file or of the donors' manifest."""

    name: ClassVar[str]

    def __init__(self, source: str, alpha: float | None = None) -> None:
        self.source, self.alpha = source, alpha

    @abstractmethod
    def check(self, target: Target) -> None:
        """Raise BadAblation, before anything is touched, if the target cannot be edited."""

    @abstractmethod
    def edited(self, target: Target) -> Tensor:
        """A new tensor, of the target's shape and dtype."""

    def ratio(self, target: Target, after: Tensor) -> float | None:
        """The signed ratio, where there is one. Raises BadAblation unless it is 1 - alpha."""
        return None


class Projection(Method):
    """W' = (I - alpha r r^T / |r|^2) W."""

    name = "proj"

    def __init__(self, wanted: settings.Wanted) -> None:
        self.strength, self.direction = wanted.alpha, directions.read(wanted.direction)
        super().__init__(self.direction.sha256, wanted.alpha)

    def check(self, target: Target) -> None:
        self.direction.of(target.layer)
        if target.weight.shape[0] != self.direction.hidden:
            rows = target.weight.shape[0]
            raise BadAblation(f"{target.name}: the direction has {self.direction.hidden} values, and the weight {rows} rows")

    def edited(self, target: Target) -> Tensor:
        return formula.project(target.weight, self.direction.of(target.layer), self.strength)

    def ratio(self, target: Target, after: Tensor) -> float:
        found = formula.signed_ratio(target.weight, after, self.direction.of(target.layer))
        if not abs(found - (1 - self.strength)) <= NEAR[target.weight.dtype] * max(1.0, self.strength):
            raise BadAblation(f"{target.name}: what lies along the direction is {found:.5f} times what it was, not {1 - self.strength:g}")
        return found


class Transplant(Method):
    """W' is the donor's."""

    name = "transplant"

    def __init__(self, wanted: settings.Wanted) -> None:
        self.donors, source = transplant.read(wanted.donors)
        super().__init__(source)

    def check(self, target: Target) -> None:
        if target.layer not in self.donors:
            raise BadAblation(f"{target.name}: there is no donor for layer {target.layer}")
        wanted, found = (target.weight.shape[0], target.whole), self.donors[target.layer].shape
        if found != wanted:
            raise BadAblation(f"{target.name}: the donor is {list(found)}, and the model's weight {list(wanted)}")

    def edited(self, target: Target) -> Tensor:
        part = self.donors[target.layer].load()[:, target.first : target.first + target.weight.shape[1]]
        return part.to(device=target.weight.device, dtype=target.weight.dtype)


def method(wanted: settings.Wanted) -> Method:
    return Transplant(wanted) if wanted.method == "transplant" else Projection(wanted)


def targets(model: nn.Module, layers: Sequence[int], *, mtp: bool) -> list[Target]:
    """The o_proj of exactly these layers, of the decoder or of the MTP block, in order.

    Raises BadAblation if one is missing, quantized, edited already, or there twice.
    """
    found: dict[int, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        hit = O_PROJ.search(name)
        if not hit or bool(hit[2]) != mtp or int(hit[1]) not in layers:
            continue
        other, known = found.setdefault(int(hit[1]), (name, module))
        if known is not module:
            raise BadAblation(f"layer {hit[1]} has two output projections, {other} and {name}")
    if missing := [layer for layer in layers if layer not in found]:
        raise BadAblation(f"no self_attn.o_proj was found in {ranges(missing)} of the layers to edit: nothing was edited")
    return [_target(layer, *found[layer]) for layer in layers]


def _target(layer: int, name: str, module: nn.Module) -> Target:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.dtype not in formula.EDITABLE:
        stored = ", ".join(f"{key} {value.dtype}" for key, value in module.named_parameters(recurse=False)) or "nothing"
        raise BadAblation(
            f"{name} is quantized ({stored}): only a float32, bfloat16 or float16 weight can be edited; ABLIT=0, or other layers"
        )
    if hasattr(module, MARK):
        raise BadAblation(f"{name} was edited already: a second edit would make (1 - alpha)^2 of 1 - alpha")
    ranks, rank = int(getattr(module, "tp_size", 1)), int(getattr(module, "tp_rank", 0))
    return Target(layer, name, module, weight.data, rank * weight.shape[1], ranks * weight.shape[1])


def apply(found: Iterable[Target], how: Method) -> list[Change]:
    """Edit them in place. Everything that can be refused is refused before the first is touched. Raises BadAblation."""
    kept = list(found)
    for target in kept:
        how.check(target)
    return [_apply(target, how) for target in kept]


def _apply(target: Target, how: Method) -> Change:
    after = how.edited(target)
    before, ratio = sha256(target.weight), how.ratio(target, after)
    change = Change(target.layer, ratio, formula.relative_change(target.weight, after), before, sha256(after))
    target.weight.copy_(after)
    setattr(target.module, MARK, change.sha256_after)
    return change


def sha256(weight: Tensor) -> str:
    """Of the tensor's bytes in row-major order."""
    return hashlib.sha256(weight.detach().cpu().contiguous().view(torch.uint8).numpy()).hexdigest()


def summary(changes: Sequence[Change], how: Method, rank: int, world: int, part: str) -> Summary:
    ratios, moved = [change.ratio for change in changes if change.ratio is not None], [change.rel_l2 for change in changes]
    span = (round(min(ratios), 5), round(max(ratios), 5)) if ratios else None
    numbers = ranges([change.layer for change in changes])
    return Summary(rank, world, part, how.name, how.alpha, numbers, how.source, span, (round(min(moved), 5), round(max(moved), 5)))


def ranges(numbers: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> "1-3,7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def split(layers: Iterable[int], decoders: int) -> Mapping[str, tuple[int, ...]]:
    """Which of the layers are the decoder's ("model") and which the MTP block's ("mtp"), numbered after them."""
    kept = tuple(layers)
    return {"model": tuple(n for n in kept if n < decoders), "mtp": tuple(n for n in kept if n >= decoders)}
