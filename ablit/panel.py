"""The text panel of a point: KL divergence from the unedited model at every position of the sealed windows (bench/kld/inprocess.py), and
what speculative decoding with the unedited model as drafter would make of the edit, from the same pass."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ablit.lean import Lean
from ablit.receipt import LayerEdit, Panel
from ablit.receipt import Window as WindowFacts
from bench.errors import BadRequest, InvalidMeasurement
from bench.kld.inprocess import Stock, parts_of
from bench.kld.windows import Window as KldWindow

TV_STRIDE = 8  # total variation needs both distributions: every eighth position stands for all
_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.2}  # of a whole window's states, relative
_SCALE = 32768  # probabilities are kept as fp16: scaled, they reach down to 2e-12


@dataclass(frozen=True)
class Distances:
    """[windows, positions] KLD in nats (fp64) and whether the first choice is the same; total variation of every TV_STRIDE-th position."""

    kld: Tensor
    agree: Tensor
    tv: Tensor


@dataclass(frozen=True)
class _Kept:
    """What enters a layer and what it attends to, batch by batch, under the edits `below` it."""

    below: tuple[tuple[int, str, str], ...]
    entering: list[Tensor]
    attended: list[Tensor]


def _below(edits: Sequence[LayerEdit], layer: int) -> tuple[tuple[int, str, str], ...]:
    """The weights below `layer` that are not the model's own, by their content."""
    changed = (edit for edit in edits if edit.layer < layer and edit.before_sha256 != edit.after_sha256)
    return tuple(sorted((edit.layer, edit.target, edit.after_sha256) for edit in changed))


class Base(Stock):
    """The unedited pass, with what total variation needs beside that which `Stock` keeps: every TV_STRIDE-th distribution, as fp16.

    The layers are run by `Lean`, over weights in the processor's order, in the stock pass and in a point's alike: a null edit gives the
    same bits. batch: windows at a time; one to eight were equally fast.
    """

    def __init__(self, model: Any, windows: Sequence[KldWindow], *, entries: Sequence[int] = (), batch: int = 2) -> None:
        self.lean = Lean(model)
        self._attended: dict[int, list[Tensor]] = {}
        self._kept: dict[int, _Kept] = {}
        super().__init__(model, windows, entries=entries, batch=batch)
        if not self.head.plain:
            raise BadRequest("the model's head has a bias, a cap or a scale: it cannot be swept here\ntry: invoke kld.capture of each edit")
        with torch.inference_mode():
            parts = [self._cheap_part(part, self.base.hidden[part]) for part in parts_of(len(self.base.hidden))]
        self._shares = [shares(e) for *_, e in parts]

    def hidden(self, first_layer: int = 0) -> Tensor:
        """As `Stock.hidden`, in fp32."""
        with torch.inference_mode():
            return self._edited(first_layer)

    def _edited(self, first: int, edits: Sequence[LayerEdit] = (), keep: Sequence[int] = ()) -> Tensor:
        """The normed states, with the least that must be computed anew."""
        start = self._start(first)
        begun = _Kept((), self._entries[start], self._attended[start])
        if not edits:
            return self._through(begun, start, {})
        for layer, kept in self._kept.items():
            if layer > start and kept.below == _below(edits, layer):
                start, begun = layer, kept
        fresh = {layer: _Kept(_below(edits, layer), [], []) for layer in keep if layer > start}
        found = self._through(begun, start, fresh)
        self._kept |= fresh
        return found

    def _through(self, begun: _Kept, start: int, keep: dict[int, _Kept]) -> Tensor:
        """The normed states from what enters layer `start`. What enters the layers in `keep` on the way is put there."""
        packed, count, found = self.lean.packed(start), len(self.layers), []
        for x, seen in zip(begun.entering, begun.attended, strict=True):
            for first, last in itertools.pairwise([start, *sorted(keep), count]):
                if first != start:
                    seen = self.lean.attend(x, first)
                    keep[first].entering.append(x)
                    keep[first].attended.append(seen)
                x = self.lean.window(x, first, last, packed, seen)
            found.append(self.lean.final(x))
        return torch.cat(found)

    def _stock_pass(self, ids: Tensor) -> Tensor:
        """One batch through the unedited model; keeps what enters the layers named as entries, and what these attend to."""
        first = not self._entries[0]
        x, entries = self.lean.embed(ids), sorted(self._entries)
        for start, end in itertools.pairwise([*entries, len(self.layers)]):
            seen = self.lean.attend(x, start)
            self._entries[start].append(x)
            self._attended.setdefault(start, []).append(seen)
            x = self.lean.window(x, start, end, self.lean.packed(edits=()), seen)
        final = self.lean.final(x)
        if first:
            self._as_the_model(ids[:1], final[:1])
        return final

    def _as_the_model(self, ids: Tensor, final: Tensor) -> None:
        """Raises BadRequest unless the lean pass gives the model's own states, up to rounding."""
        own = self.model.base_model(ids, use_cache=False).last_hidden_state.float()
        if not float((own - final).norm() / own.norm()) <= _ROUNDING[self.model.dtype]:
            raise BadRequest(f"{type(self.model).__name__}: the lean pass over its layers does not give the model's own result")

    def measure(self, first: int, edits: Sequence[LayerEdit] = (), keep: Sequence[int] = ()) -> Distances:
        """The model as it is now, of which no layer below `first` was edited.

        edits: how it is edited. With them, layers below one that an earlier call was told to `keep` are not run again if their weights are
        the same now as then: points of a sweep that differ in their last layer only have most of their work in common.
        """
        found = []
        with torch.inference_mode():
            hidden = self._edited(first, edits, keep).flatten(0, 1)
            for part, stock in zip(parts_of(len(hidden)), self._shares, strict=True):
                kld, agree, _, e = self._cheap_part(part, hidden[part])
                found.append((kld, agree, total_variation(stock, shares(e))))
        kld, agree, tv = (torch.cat(column).reshape(self.shape[0], -1) for column in zip(*found, strict=True))
        if not bool(kld.isfinite().all()):
            raise InvalidMeasurement("the edited model's logits are not finite at some position\ntry: a smaller alpha")
        return Distances(kld, agree, tv)


def shares(e: Tensor) -> Tensor:
    """Of rows of terms that are proportional to probabilities: every TV_STRIDE-th as probabilities times _SCALE, fp16."""
    some = e[::TV_STRIDE]
    return (some * (_SCALE / some.sum(1, keepdim=True))).half()


def total_variation(old: Tensor, new: Tensor) -> Tensor:
    """[rows] sum over the vocabulary of |p - q| / 2 of rows of `shares`; equal rows give exactly 0."""
    return (old.float() - new.float()).abs_().sum(dim=1) / (2 * _SCALE)


def facts(found: Distances, texts: str, windows: tuple[KldWindow, ...]) -> Panel:
    """What a receipt keeps of one measurement."""
    time = found.kld.shape[1]
    columns = (found.kld.sum(1), found.tv.double().mean(1), found.agree.sum(1), found.kld.max(1).values)
    rows = zip(windows, *(column.tolist() for column in columns), strict=True)
    kept = tuple(WindowFacts(name=w.name, positions=time, kld=k, tv=v * time, agree=a, kld_max=m) for w, k, v, a, m in rows)
    marks = torch.quantile(found.kld.flatten(), torch.tensor([0.5, 0.99, 0.999], dtype=found.kld.dtype)).tolist()
    digest = texts_sha256(windows)
    return Panel(form="statistics", texts=texts, texts_sha256=digest, windows=kept, median=marks[0], p99=marks[1], p999=marks[2])


def texts_sha256(windows: tuple[KldWindow, ...]) -> str:
    return hashlib.sha256("\n".join(f"{window.name} {window.sha256}" for window in windows).encode()).hexdigest()


def full_kld(head: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The definition, over the full vocabulary in the states' own precision: [rows, hidden] twice -> [rows]."""
    p, q = torch.log_softmax(old @ head.T.to(old.dtype), 1), torch.log_softmax(new @ head.T.to(new.dtype), 1)
    return (p.exp() * (p - q)).sum(1)
