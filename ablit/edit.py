"""An edit in a loaded transformers model: applied in place, proved tensor by tensor, and taken back byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm_glm_exl3.ablation import formula
from vllm_glm_exl3.errors import BadAblation

from ablit.receipt import LayerEdit
from ablit.spec import EditSpec
from bench.errors import BadRequest

_MARK = "_ablit_edited"


@dataclass(frozen=True)
class Vectors:
    """A direction as the edit needs it: fp32 [hidden], or [layers, hidden]. `id`: its name in a spec; `facts`: for receipts."""

    tensor: Tensor
    id: str
    facts: dict[str, str]

    def of(self, layer: int) -> Tensor:
        if self.tensor.dim() == 1:
            return self.tensor
        if layer >= self.tensor.shape[0]:
            raise BadRequest(f"the direction has vectors for layers 0 to {self.tensor.shape[0] - 1}, none for layer {layer}")
        return self.tensor[layer]


def random_like(vectors: Vectors, seed: int) -> Vectors:
    """A control: a Gaussian direction from `seed`, as long as the real one (the mean length when it has one a layer)."""
    hidden = vectors.tensor.shape[-1]
    drawn = torch.randn(hidden, generator=torch.Generator().manual_seed(seed))
    length = float(vectors.tensor.reshape(-1, hidden).norm(dim=-1).mean())
    name = f"random-{seed}"
    return Vectors(drawn / drawn.norm() * length, name, {"name": name, "norm": f"{length:.6g}"})


def projection(model: Any, layer: int, target: str) -> Any:
    """The module whose weight is edited. Raises BadRequest: no such layer, none of that name, not a plain 2-D float weight."""
    layers = model.model.layers
    if not 0 <= layer < len(layers):
        most = len(layers) - 1
        raise BadRequest(f"layer {layer} is outside the model, which has layers 0 to {most}\ntry: --layers 0-{most}")
    owner = layers[layer].self_attn if target == "o_proj" else layers[layer].mlp
    module = getattr(owner, target, None)
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        raise BadRequest(f"layer {layer} of this {model.config.model_type} has no {target}\ntry: a model with {target}, or other --targets")
    if weight.dim() != 2 or not weight.is_floating_point():
        raise BadRequest(f"layer {layer} {target} is {weight.dtype} {list(weight.shape)}: only a 2-D float weight can be edited")
    return module


def fits(model: Any, spec: EditSpec, vectors: Vectors) -> None:
    """Raises BadRequest before anything is touched: wrong hidden size, zeros or NaN, a layer or projection that is not there."""
    for layer in spec.layers:
        try:
            vector = formula.unit(vectors.of(layer))
        except BadAblation as error:
            raise BadRequest(f"direction for layer {layer}: {error}") from None
        for target in spec.targets:
            rows = projection(model, layer, target).weight.shape[0]
            if rows != vector.shape[0]:
                raise BadRequest(f"layer {layer} {target} has {rows} rows, the direction {vector.shape[0]} values: it is another model's")


@contextmanager
def edited(model: Any, spec: EditSpec, vectors: Vectors) -> Iterator[tuple[LayerEdit, ...]]:
    """Within the block the model's weights are edited. Raises BadRequest for an edit inside an edit, and as `fits` does.

    A spec whose alphas are all 0 is the twin and leaves every byte; any other spec that changes no byte is refused.
    """
    if getattr(model, _MARK, False):
        raise BadRequest("the model is edited already: twice gives (1 - alpha)^2, not 1 - alpha\ntry: leave the first edit first")
    fits(model, spec, vectors)
    kept: list[tuple[Tensor, Tensor]] = []
    setattr(model, _MARK, True)
    try:
        done = tuple(_apply(model, spec, vectors, layer, target, kept) for layer in spec.layers for target in spec.targets)
        if not spec.is_null and all(edit.before_sha256 == edit.after_sha256 for edit in done):
            raise BadRequest("the edit changes no weight\ntry: a larger alpha, or another direction")
        yield done
    finally:
        for weight, stock in kept:
            weight.copy_(stock)
        setattr(model, _MARK, False)


def _apply(model: Any, spec: EditSpec, vectors: Vectors, layer: int, target: str, kept: list[tuple[Tensor, Tensor]]) -> LayerEdit:
    weight, alpha, vector = projection(model, layer, target).weight.data, spec.alpha_of(layer), vectors.of(layer)
    before = weight.clone()
    after = formula.project(before, vector, alpha)
    if not bool(after.isfinite().all()):
        raise BadRequest(
            f"layer {layer} {target}: alpha {alpha:g} leaves values that are not finite in {weight.dtype}\ntry: an alpha of 0 to 3"
        )
    try:
        ratio, change = formula.signed_ratio(before, after, vector), formula.relative_change(before, after)
    except BadAblation as error:
        raise BadRequest(
            f"layer {layer} {target}: {error}; the edit would touch nothing\ntry: another direction, or other --layers"
        ) from None
    kept.append((weight, before))
    weight.copy_(after)
    return LayerEdit(
        layer=layer, target=target, alpha=alpha, ratio=ratio, change=change, before_sha256=digest(before), after_sha256=digest(after)
    )


def digest(weight: Tensor) -> str:
    """sha256 of a tensor's bytes."""
    return hashlib.sha256(weight.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
