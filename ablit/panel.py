"""The text panel of a point: KL divergence from the unedited model at every position of the sealed windows (bench/kld/inprocess.py), and
what speculative decoding with the unedited model as drafter would make of the edit, from the same pass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ablit.receipt import Panel
from ablit.receipt import Window as WindowFacts
from bench.kld.inprocess import Stock
from bench.kld.windows import Window

ROWS = 256
TV_STRIDE = 8  # total variation needs both distributions: every eighth position stands for all


@dataclass(frozen=True)
class Distances:
    """[windows, positions] KLD in nats (fp64) and whether the first choice is the same; total variation of every TV_STRIDE-th position."""

    kld: Tensor
    agree: Tensor
    tv: Tensor


class Base(Stock):
    """The unedited pass, with the total variation of a stride of positions added to what `Stock` scores."""

    def measure(self, first: int) -> Distances:
        """The model as it is now, of which no layer below `first` was edited."""
        with torch.inference_mode():
            hidden = self.hidden(first).flatten(0, 1).float()
            kld, agree, _ = (torch.cat(column).reshape(self.shape) for column in zip(*self._cheap(hidden), strict=True))
            old, new = self.base.hidden[::TV_STRIDE], hidden[::TV_STRIDE]
            parts = [total_variation(self.head.weight, a, b) for a, b in zip(old.split(ROWS), new.split(ROWS), strict=True)]
        return Distances(kld, agree, torch.cat(parts).reshape(self.shape[0], -1))


def total_variation(head: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """[rows] sum over the vocabulary of |p - q| / 2, of the states [rows, hidden]; equal states give exactly 0."""
    p, q = torch.softmax(old @ head.T, dim=1), torch.softmax(new @ head.T, dim=1)
    return p.sub_(q).abs_().sum(dim=1) / 2


def facts(found: Distances, texts: str, windows: tuple[Window, ...]) -> Panel:
    """What a receipt keeps of one measurement."""
    time = found.kld.shape[1]
    columns = (found.kld.sum(1), found.tv.double().mean(1), found.agree.sum(1), found.kld.max(1).values)
    rows = zip(windows, *(column.tolist() for column in columns), strict=True)
    kept = tuple(WindowFacts(name=w.name, positions=time, kld=k, tv=v * time, agree=a, kld_max=m) for w, k, v, a, m in rows)
    marks = torch.quantile(found.kld.flatten(), torch.tensor([0.5, 0.99, 0.999], dtype=found.kld.dtype)).tolist()
    digest = texts_sha256(windows)
    return Panel(form="statistics", texts=texts, texts_sha256=digest, windows=kept, median=marks[0], p99=marks[1], p999=marks[2])


def texts_sha256(windows: tuple[Window, ...]) -> str:
    return hashlib.sha256("\n".join(f"{window.name} {window.sha256}" for window in windows).encode()).hexdigest()


def full_kld(head: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The definition, over the full vocabulary in the states' own precision: [rows, hidden] twice -> [rows]."""
    p, q = torch.log_softmax(old @ head.T.to(old.dtype), 1), torch.log_softmax(new @ head.T.to(new.dtype), 1)
    return (p.exp() * (p - q)).sum(1)
