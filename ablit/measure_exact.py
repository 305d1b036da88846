"""That an edit is the one asked for, tensor by tensor, as figures: `python -m ablit.measure exactness OUT DIRECTION`.

Of every o_proj and down_proj, stored as fp32 and as bf16, at each alpha: the signed ratio, which must be 1 - alpha, and whether what 2
and 3 tensor-parallel ranks make of their columns is byte for byte the whole edit. Then the null edit's KLD, the fast form of the KLD
against fp64 over the full vocabulary, the refusal of an edit inside an edit, and whether all weights came back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm_glm_exl3.ablation import formula

from ablit import panel
from ablit.edit import Vectors, digest, edited, projection
from ablit.model import Loaded
from ablit.receipt import RATIO_TOLERANCE
from ablit.spec import EditSpec, Target
from bench.errors import BadRequest
from bench.kld.windows import Window

ALPHAS, RANKS, DTYPES = (1.0, 2.0, 3.0), (2, 3), (torch.float32, torch.bfloat16)
TARGETS: tuple[Target, ...] = ("o_proj", "down_proj")


def rows(loaded: Loaded, vectors: Vectors, alphas: Sequence[float] = ALPHAS, ranks: Sequence[int] = RANKS) -> Iterator[dict[str, Any]]:
    """One edited tensor each; nothing in the model is touched."""
    for layer in range(len(loaded.model.model.layers)):
        for target in TARGETS:
            stock = projection(loaded.model, layer, target).weight.data
            for dtype in DTYPES:
                for alpha in alphas:
                    yield {"layer": layer, "target": target, **tensor(stock.to(dtype), vectors.of(layer), alpha, ranks)}


def tensor(weight: Tensor, vector: Tensor, alpha: float, ranks: Sequence[int]) -> dict[str, Any]:
    """The edit of one weight. `shards_equal`: for how many ranks, of those asked for, the joined parts have the whole's sha256."""
    after = formula.project(weight, vector, alpha)
    whole = digest(after)
    joined = {n: digest(torch.cat([formula.project(part.contiguous(), vector, alpha) for part in split(weight, n)], dim=1)) for n in ranks}
    return {
        "dtype": str(weight.dtype).removeprefix("torch."),
        "alpha": alpha,
        "ratio": formula.signed_ratio(weight, after, vector),
        "change": formula.relative_change(weight, after),
        "after_sha256": whole,
        "shards_equal": [n for n in ranks if joined[n] == whole],
    }


def split(weight: Tensor, ranks: int) -> list[Tensor]:
    """A rank's columns each. Raises BadRequest when they cannot be shared out."""
    if weight.shape[1] % ranks:
        raise BadRequest(f"{weight.shape[1]} columns cannot be shared out to {ranks} ranks")
    return list(weight.split(weight.shape[1] // ranks, dim=1))


def summary(found: Sequence[dict[str, Any]], ranks: Sequence[int] = RANKS) -> dict[str, Any]:
    """Worst miss of 1 - alpha by dtype, relative to max(1, alpha), beside what is allowed; and how many joined parts were not the whole."""
    worst = {
        name: max(abs(r["ratio"] - 1 + r["alpha"]) / max(1, r["alpha"]) for r in found if r["dtype"] == name) for name in _names(found)
    }
    return {
        "edits": len(found),
        "worst_ratio_error": worst,
        "allowed_ratio_error": {name: RATIO_TOLERANCE[name] for name in worst},
        "shards_unequal": sum(len(ranks) - len(r["shards_equal"]) for r in found),
    }


def _names(found: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({r["dtype"] for r in found})


def in_the_model(
    loaded: Loaded, vectors: Vectors, windows: Sequence[Window], layers: Sequence[int], full: Callable[..., float]
) -> dict[str, Any]:
    """What only the loaded model shows. `full`: worst error of a panel's KLD, of its first window, against fp64 (measure.worst)."""
    before, base = weights_sha256(loaded), panel.Base(loaded.model, windows, entries=[layers[0]])
    spec = EditSpec(direction=vectors.id, layers=tuple(layers), alpha=3.0)
    with edited(loaded.model, spec.model_copy(update={"alpha": 0.0}), vectors):
        null = base.measure(layers[0])
    with edited(loaded.model, spec, vectors):
        found = base.measure(layers[0])
        error = full(loaded, base, found)
        inside = _refusal(loaded, spec, vectors)
    return {
        "positions": null.kld.numel(),
        "null_kld_max": float(null.kld.abs().max()),
        "null_tv_max": float(null.tv.abs().max()),
        "alpha_3_kld": float(found.kld.mean()),
        "alpha_3_error_against_fp64": error,
        "edit_inside_an_edit": inside,
        "weights_came_back": weights_sha256(loaded) == before,
    }


def _refusal(loaded: Loaded, spec: EditSpec, vectors: Vectors) -> str | None:
    try:
        with edited(loaded.model, spec, vectors):
            return None
    except BadRequest as error:
        return str(error).splitlines()[0]


def weights_sha256(loaded: Loaded) -> str:
    """Of every parameter's bytes."""
    return hashlib.sha256("".join(digest(value.data) for value in loaded.model.parameters()).encode()).hexdigest()
