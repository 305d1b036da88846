"""Directions by difference of means, and direction files with their provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from vllm_glm_exl3.ablation import direction as files
from vllm_glm_exl3.errors import BadAblation

from ablit.edit import Vectors
from ablit.lean import Lean
from ablit.model import Loaded
from ablit.prompts import Prompts
from ablit.reply import chat
from bench.errors import BadRequest, BenchError

VARIANTS = ("mean", "orthogonal", "per-layer")


@dataclass(frozen=True)
class Recipe:
    """`layer`: whose output is read (the residual after it); `positions`: how many last prompt positions are averaged.

    variant mean: mean(positive) - mean(negative). orthogonal: less its part along the negative mean. per-layer: each layer's own output.
    """

    layer: int
    positions: int = 1
    variant: str = "mean"


def residuals(loaded: Loaded, prompts: Prompts, positions: int) -> Tensor:
    """[prompts, layers, hidden] fp32: the residual after every layer, averaged over the last `positions` of each prompt in chat form."""
    lean = Lean(loaded.model)
    asked = chat(lean, loaded.tokenizer, prompts.texts, loaded.ends)
    if positions > int((asked.length - asked.start).min()):
        raise BadRequest(f"--positions is {positions}: the shortest prompt of {prompts.name} has fewer tokens of its own\ntry: 1")
    memory = lean.memory(asked.length, asked.start, asked.prefix.shape[1])
    prefix, rest, found = lean.embed(asked.prefix), lean.embed(asked.ids), []
    for layer in range(len(lean.layers)):
        prefix, rest = asked.through(prefix, rest, memory, layer, layer + 1)
        found.append(rest[:, -positions:].float().mean(1))
    return torch.stack(found, dim=1)


def difference(positive: Tensor, negative: Tensor, recipe: Recipe) -> Tensor:
    """[prompts, layers, hidden] of each side -> [hidden], or [layers, hidden] for per-layer. Raises BadRequest."""
    count = positive.shape[1]
    if not 0 <= recipe.layer < count:
        raise BadRequest(f"--layer is {recipe.layer}: the model has layers 0 to {count - 1}")
    wide, base = positive.mean(0) - negative.mean(0), negative.mean(0)
    if recipe.variant == "per-layer":
        return wide
    vector, mean = wide[recipe.layer], base[recipe.layer]
    return vector - mean * (vector @ mean) / (mean @ mean) if recipe.variant == "orthogonal" else vector


def quality(positive: Tensor, negative: Tensor, layer: int) -> dict[str, float]:
    """Figures of a mean difference at one layer. halves: cosine between the differences of even and odd prompts (1 = stable).
    separation: distance of the two sides' means along it, in pooled standard deviations."""
    a, b = positive[:, layer], negative[:, layer]
    even, odd = a[::2].mean(0) - b[::2].mean(0), a[1::2].mean(0) - b[1::2].mean(0)
    along = (a.mean(0) - b.mean(0)) / (a.mean(0) - b.mean(0)).norm()
    x, y = a @ along, b @ along
    pooled = ((x.var() + y.var()) / 2).sqrt()
    return {
        "norm": float((a.mean(0) - b.mean(0)).norm()),
        "halves": float(torch.nn.functional.cosine_similarity(even, odd, dim=0)),
        "separation": float((x.mean() - y.mean()) / pooled),
    }


def make(loaded: Loaded, sides: Sequence[Prompts], recipe: Recipe, out: Path, origin: Mapping[str, str]) -> dict[str, float]:
    """Write the direction positive minus negative as safetensors with its provenance; its figures. `origin`: of the model, as
    ablit/provenance.py has it. Raises BadRequest, BenchError."""
    positive, negative = (residuals(loaded, side, recipe.positions) for side in sides)
    vectors = difference(positive, negative, recipe)
    figures = quality(positive, negative, recipe.layer)
    notes = {**_notes(loaded, sides, recipe), **origin, **{name: f"{value:.6g}" for name, value in figures.items()}}
    try:
        _write(out, vectors, notes)
    except BadAblation as error:
        raise BadRequest(f"no direction: {error}\ntry: prompts that differ") from None
    return figures


def _notes(loaded: Loaded, sides: Sequence[Prompts], recipe: Recipe) -> dict[str, str]:
    notes = {
        "model": loaded.facts.name,
        "model_sha256": loaded.facts.sha256,
        "dtype": loaded.facts.dtype,
        "variant": recipe.variant,
        "layer": str(recipe.layer),
        "positions": str(recipe.positions),
        "fitted_on": json.dumps([len(side.texts) for side in sides]),
    }
    for name, side in zip(("positive", "negative"), sides, strict=True):
        notes |= {name: side.name, f"{name}_sha256": side.sha256}
        notes |= {f"{name}_source": side.source} if side.source else {}
    return notes


def convert(path: Path, out: Path) -> None:
    """A direction file of any form, as safetensors at `out`. Raises BadRequest, BenchError."""
    found = read(path)
    _write(out, found.vectors, {**found.metadata, "name": path.stem, "converted_from_sha256": found.sha256})


def _write(out: Path, vectors: Tensor, notes: Mapping[str, str]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.write(out, vectors, notes)
    except OSError as error:
        raise BenchError(f"cannot write {out}: {error.strerror}\ntry: free disk space, or another --out") from error


def read(path: Path) -> files.Direction:
    """Raises BadRequest."""
    try:
        return files.read(path)
    except BadAblation as error:
        raise BadRequest(f"{error}\ntry: invoke ablit.direction") from None


def open_file(path: Path, loaded: Loaded) -> Vectors:
    """A direction for this model. Raises BadRequest: not readable, another hidden size, or made for another model."""
    return for_model(path, read(path), loaded)


def for_model(path: Path, found: files.Direction, loaded: Loaded) -> Vectors:
    """What was read at `path`, for this model. Raises BadRequest: another hidden size, or made from other weights."""
    if found.hidden != loaded.facts.hidden:
        raise BadRequest(f"{path} has {found.hidden} values, {loaded.facts.name} a hidden size of {loaded.facts.hidden}: another model's")
    known = found.metadata.get("model_sha256")
    if known and known != loaded.facts.sha256:  # of the files: the same whatever --dtype they are loaded in
        raise BadRequest(f"{path} was made for {found.metadata.get('model')} ({known[:12]}), this is {loaded.facts.name}, other weights")
    return Vectors(found.vectors, found.sha256, {"name": path.stem, **found.metadata, "sha256": found.sha256})
