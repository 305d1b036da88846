"""KL divergence of an edited model from its unedited self at every position of fixed text windows.

Two savings, both exact up to fp32 rounding (tests compare with fp64 over the full vocabulary): the residual that enters the first
edited layer is kept, so layers below it run once; and with an unedited head W, p unedited, q edited, h the normed hidden states,
KL(p||q) = lse_q - lse_p - E_p[W] . (h_q - h_p), which needs one matrix product a point and no stored distribution. Rounding can make
a position negative by some 1e-6: nothing is clamped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ablit.lean import Lean
from ablit.receipt import Panel, Window

ROWS = 256  # positions a head product: 50 MB of fp32 logits at 49,152 words
GROUP = 4  # windows a trunk pass
TV_STRIDE = 8  # total variation needs both distributions: every eighth position stands for all


@dataclass
class Stock:
    """The unedited model's facts for a list of windows [count, time]; `entries`: layer -> residual entering it, filled on demand."""

    lean: Lean
    windows: Tensor
    hidden: Tensor
    lse: Tensor
    mean_row: Tensor
    choice: Tensor
    entries: dict[int, Tensor] = field(default_factory=dict)

    def entry(self, layer: int) -> Tensor:
        """[count, time, hidden], computed from the nearest one kept below."""
        if layer not in self.entries:
            below = max((kept for kept in self.entries if kept < layer), default=None)
            x = self.lean.embed(self.windows) if below is None else self.entries[below]
            self.entries[layer] = torch.cat([self.lean.window(part, below or 0, layer) for part in x.split(GROUP)])
        return self.entries[layer]


def stock(lean: Lean, windows: Tensor) -> Stock:
    """One full pass of the unedited model: 25 to 35 s of computing for 20,480 positions of a 135M model."""
    hidden = torch.cat([lean.final(lean.window(lean.embed(part), 0, len(lean.layers))) for part in windows.split(GROUP)])
    parts = [_statistics(lean.head, rows) for rows in hidden.flatten(0, 1).split(ROWS)]
    lse, mean_row, choice = (torch.cat([part[i] for part in parts]) for i in range(3))
    return Stock(lean, windows, hidden, lse, mean_row, choice)


def _statistics(head: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = rows @ head.T
    top, choice = logits.max(dim=1)
    weights, total = _exponentials(logits, top)
    return top + total.log(), (weights @ head) / total.unsqueeze(1), choice


def _exponentials(logits: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """exp(logits - top), in the same memory, and its sums: one routine for both models, so that equal states give equal figures."""
    weights = logits.sub_(top.unsqueeze(1)).exp_()
    return weights, weights.sum(dim=1)


def measure(base: Stock, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """The model as it is now against `base`, when layers below `first` are unedited.

    Returns per position [count, time] KLD (nats) and whether the first choice is the same, and the total variation of every TV_STRIDE-th.
    """
    lean, entry = base.lean, base.entry(first)
    hidden = torch.cat([lean.final(lean.window(part, first, len(lean.layers))) for part in entry.split(GROUP)])
    shape, flat, old = hidden.shape[:2], hidden.flatten(0, 1), base.hidden.flatten(0, 1)
    found = [_compare(lean.head, base, flat, old, at) for at in range(0, len(flat), ROWS)]
    kld, agree, tv = (torch.cat([part[i] for part in found]) for i in range(3))
    return kld.view(shape), agree.view(shape), tv.view(shape[0], -1)


def _compare(head: Tensor, base: Stock, new: Tensor, old: Tensor, at: int) -> tuple[Tensor, Tensor, Tensor]:
    span = slice(at, at + ROWS)
    logits = new[span] @ head.T
    top, choice = logits.max(dim=1)
    weights, total = _exponentials(logits, top)
    moved = new[span].double() - old[span].double()
    kld = (top + total.log()).double() - base.lse[span].double() - (base.mean_row[span].double() * moved).sum(dim=1)
    was = torch.softmax(old[span][::TV_STRIDE] @ head.T, dim=1)
    tv = (weights[::TV_STRIDE] / total[::TV_STRIDE].unsqueeze(1) - was).abs_().sum(dim=1) / 2
    return kld, choice == base.choice[span], tv


def facts(kld: Tensor, agree: Tensor, tv: Tensor, texts: str, windows: Tensor) -> Panel:
    """What a receipt keeps of one measurement."""
    sums = zip(kld.sum(1).tolist(), tv.mean(1).tolist(), agree.sum(1).tolist(), kld.max(1).values.tolist(), strict=True)
    time = kld.shape[1]
    kept = tuple(Window(positions=time, kld=k, tv=v * time, agree=a, kld_max=m) for k, v, a, m in sums)
    marks = torch.quantile(kld.flatten(), torch.tensor([0.5, 0.99, 0.999], dtype=kld.dtype)).tolist()
    return Panel(
        form="statistics", texts=texts, texts_sha256=texts_sha256(windows), windows=kept, median=marks[0], p99=marks[1], p999=marks[2]
    )


def texts_sha256(windows: Tensor) -> str:
    return hashlib.sha256(windows.to(torch.int64).contiguous().numpy().tobytes()).hexdigest()


def cut(texts: Sequence[Sequence[int]], count: int, time: int) -> Tensor:
    """[count, time] windows from token lists, taken in turn from each text, so that each has its share; none holds two texts."""
    pieces = [[text[i : i + time] for i in range(0, len(text) - time + 1, time)] for text in texts]
    turns = [kind[turn] for turn in range(max(map(len, pieces), default=0)) for kind in pieces if turn < len(kind)]
    return torch.tensor([list(piece) for piece in turns[:count]], dtype=torch.int64)


def full_kld(head: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The definition, over the full vocabulary in the states' own precision: [rows, hidden] twice -> [rows]."""
    p, q = torch.log_softmax(old @ head.T.to(old.dtype), 1), torch.log_softmax(new @ head.T.to(new.dtype), 1)
    return (p.exp() * (p - q)).sum(1)
