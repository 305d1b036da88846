"""From final hidden states to logits, in fp32 whatever the trunk's dtype: bf16 logits move the mean KLD by 2 %. Needs torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.errors import BadRequest

# how far the model's own logits may be from ours, relative to their range: a bf16 head rounds
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Head:
    """logits = cap * tanh(z / cap), z = scale * (h W^T + b); without cap: z. weight: fp32 [vocabulary, hidden], a copy."""

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    @property
    def plain(self) -> bool:
        """Whether logits are a linear map of h, which the cheap form of the KLD needs."""
        return self.bias is None and self.scale == 1.0 and self.cap is None

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [n, vocabulary] for `hidden` [n, hidden]."""
        z = torch.nn.functional.linear(hidden.float(), self.weight, self.bias)
        z = z if self.scale == 1.0 else z.mul_(self.scale)
        return z if self.cap is None else z.div_(self.cap).tanh_().mul_(self.cap)

    def same_as(self, model: Any) -> bool:
        """Whether `model` has these very weights in its head now."""
        now = model.get_output_embeddings()
        bias = getattr(now, "bias", None)
        same_bias = bias is None if self.bias is None else bias is not None and torch.equal(bias.float(), self.bias)
        return same_bias and torch.equal(now.weight.float(), self.weight)


def product(weight: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """x [about `rows`, hidden] -> x W^T for an fp32 `weight` that nobody changes.

    Keeps a copy in the order in which the processor's kernels read it (oneDNN), where torch offers that: a plain product of few rows spends
    up to a third of its time on bringing a large weight into that order, every time anew. Elsewhere the plain product. What follows a
    product is better done apart from it: oneDNN's fused activation made the pair up to a tenth slower (AVX2, 128 to 2,048 rows).
    """
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        if torch.allclose(_packed(packed, weight[:4]), torch.nn.functional.linear(weight[:4], weight), rtol=1e-4, atol=1e-4):
            return functools.partial(_packed, packed)
    except (AttributeError, RuntimeError):
        pass  # a build of torch without oneDNN, or a processor for which it has no such kernel
    return functools.partial(torch.nn.functional.linear, weight=weight)


def _packed(weight: Tensor, x: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return found


def of(model: Any) -> Head:
    """The head of a transformers model. Raises BadRequest when it has no linear output embedding."""
    layer, config = model.get_output_embeddings(), model.config
    if layer is None or getattr(layer, "weight", None) is None or layer.weight.ndim != 2:
        raise BadRequest(f"{type(model).__name__} has no linear head: its logits cannot be computed from hidden states")
    bias = getattr(layer, "bias", None)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    weight = layer.weight.detach().float().clone()
    return Head(weight, None if bias is None else bias.detach().float().clone(), scale, float(cap) if cap else None)


def verify(head: Head, model: Any, hidden: Tensor, logits: Tensor) -> None:
    """Raises BadRequest unless `head` gives the model's own `logits` [n, vocabulary] from its own `hidden` [n, hidden]."""
    ours, theirs = head.logits(hidden), logits.float()
    tolerance = _TOLERANCE.get(model.dtype, 3e-2) * float(theirs.max() - theirs.min())
    if ours.shape != theirs.shape or not bool((ours - theirs).abs().max() <= tolerance):
        raise BadRequest(f"{type(model).__name__} does more between its last norm and its logits than this tool knows")
