"""KLD of an edited model from its own stock state, in process, at every position of the windows. Runs in the lab environment.

The stock pass is made once. Afterwards a point costs the layers from the first edited one on (the residual that enters it is kept)
and one product with the head: with a linear head that the edit does not touch,

    KL(p || q) = log sum_v exp(l_q[v] - lse_p) - m_p . (h_q - h_p),    m_p = sum_v p[v] W[v]

exactly, with h the hidden state after the last norm. So h_p, m_p and lse_p (two vectors and a number a position) stand for the stock
distribution over the whole vocabulary. The logits of the stock's _EXACT most likely tokens, which carry most of the rounding, are formed
in fp64. Where the head is edited, has a bias, a cap or a scale, both distributions are formed in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.errors import BadRequest, InvalidMeasurement
from bench.kld import head as heads
from bench.kld.positions import Positions, bucket_of, micronats
from bench.kld.windows import Window

TOP_K = 20
_EXACT = 8
_ROWS = 128  # rows of logits at a time: 25 MB at 49,152 tokens
_BLOCK = 4096  # tokens of the vocabulary whose part of m_p is summed in fp32; the parts are added in fp64


@dataclass(frozen=True)
class Scored:
    """Of every position, [windows, positions]: KL(stock || now) in nats (fp64), whether the most likely token is the same, whether the
    stock's most likely token left the now most likely TOP_K, the stock's confidence, and with `full` the total variation distance."""

    kld: Tensor
    agree: Tensor
    lost: Tensor
    confidence: Tensor
    tv: Tensor | None = None

    def windows(self) -> tuple[Positions, ...]:
        """As a receipt keeps them. Raises InvalidMeasurement for values that are not finite."""
        rows = zip(self.kld.tolist(), self.agree.tolist(), self.lost.tolist(), self.confidence.tolist(), strict=True)
        return tuple(Positions(micronats(k), tuple(a), tuple(lo), tuple(bucket_of(c) for c in conf)) for k, a, lo, conf in rows)


@dataclass(frozen=True)
class _Base:
    """The stock distributions, [rows, ...]: final hidden state, m_p (fp64), lse, log of the sum that the cheap form gives for the stock
    itself (so that a null edit gives 0 exactly), most likely tokens [rows, _EXACT] in order, probability of the first."""

    hidden: Tensor
    mean_row: Tensor
    lse: Tensor
    log_sum: Tensor
    top: Tensor
    confidence: Tensor


class Stock:
    """A transformers causal model as it is now, with everything kept that scoring edited versions of the same object needs.

    windows: of equal length. entries: layers whose incoming residual is kept (0 always is); name the first layers you will edit.
    The model is put into eval mode and must be unedited when this is made. Raises BadRequest for a model of an unknown build.
    """

    def __init__(self, model: Any, windows: Sequence[Window], *, entries: Sequence[int] = (), batch: int = 4) -> None:
        if not windows or len({window.positions for window in windows}) != 1:
            raise BadRequest("the panel needs at least one window, all of the same length")
        self.model, self.batch = model.eval(), batch
        self.layers, self.norm = _parts(model)
        bad = [each for each in entries if not 0 <= each < len(self.layers)]
        if bad:
            raise BadRequest(f"no layer {bad[0]}; the model has layers 0 to {len(self.layers) - 1}")
        self.shape = (len(windows), windows[0].positions)
        self._entries: dict[int, list[Tensor]] = {each: [] for each in sorted({0, *entries})}
        self._call: dict[int, list[dict[str, Any]]] = {}  # batch size -> each layer's keyword arguments
        ids = torch.tensor([window.tokens[:-1] for window in windows])
        if int(ids.max()) >= model.get_input_embeddings().weight.shape[0]:
            raise BadRequest("the windows hold token ids that the model does not have: they were cut by another tokenizer")
        self.head = heads.of(model)
        self._product = heads.product(self.head.weight, _ROWS) if self.head.plain else self.head.logits
        with torch.inference_mode():
            hidden = torch.cat([self._stock_pass(part) for part in ids.split(batch)])
            heads.verify(self.head, model, hidden[:1, :8].flatten(0, 1), model(ids[:1, :8], use_cache=False).logits[0])
            self.base = self._statistics(hidden.flatten(0, 1).float())

    def score(self, first_layer: int = 0, *, full: bool = False) -> Scored:
        """The model as it is now, of which no layer before `first_layer` was edited. full: form both distributions, gives `tv` too."""
        with torch.inference_mode():
            hidden = self.hidden(first_layer).flatten(0, 1).float()
            whole = full or not self.head.plain or not self.head.same_as(self.model)
            parts = [*self._full(hidden)] if whole else [*self._cheap(hidden)]
        columns = [torch.cat(column).reshape(self.shape) for column in zip(*parts, strict=True)]
        if not bool(columns[0].isfinite().all()):
            raise InvalidMeasurement("the edited model's logits are not finite at some position: NaN or infinite weights?")
        kld, agree, lost = columns[:3]
        return Scored(kld, agree, lost, self.base.confidence.reshape(self.shape), columns[3] if whole else None)

    def hidden(self, first_layer: int = 0) -> Tensor:
        """The states after the last norm of the model as it is now, [windows, positions, hidden], in the trunk's dtype."""
        start = self._start(first_layer)
        with torch.inference_mode():
            return torch.cat([self._replay(start, part) for part in self._entries[start]])

    def _start(self, first_layer: int) -> int:
        """The highest kept entry from which a model that is edited from `first_layer` on can be re-run."""
        if not 0 <= first_layer < len(self.layers):
            raise BadRequest(f"no layer {first_layer}; the model has layers 0 to {len(self.layers) - 1}")
        return max(entry for entry in self._entries if entry <= first_layer)

    def _stock_pass(self, ids: Tensor) -> Tensor:
        """One batch through the whole stock model; keeps the entries, and proves that a replay from each gives the same bits."""
        seen: list[tuple[Tensor, dict[str, Any]]] = []

        def note(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            rest = {key: value for key, value in kwargs.items() if key != "hidden_states"}
            seen.append((args[0] if args else kwargs["hidden_states"], rest))

        hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in self.layers]
        try:
            final: Tensor = self.model.base_model(ids, use_cache=False).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        first_of_size = len(ids) not in self._call
        self._call[len(ids)] = [rest for _, rest in seen]
        for entry, kept in self._entries.items():
            kept.append(seen[entry][0].clone())
            if first_of_size and not torch.equal(self._replay(entry, kept[-1]), final):
                raise BadRequest(f"{type(self.model).__name__}: running its layers one by one does not give the model's own result")
        return final

    def _replay(self, start: int, residual: Tensor) -> Tensor:
        calls = self._call[len(residual)]
        for layer, kwargs in zip(self.layers[start:], calls[start:], strict=True):
            out = layer(residual, **kwargs)
            residual = out[0] if isinstance(out, tuple) else out
        normed: Tensor = self.norm(residual)
        return normed

    def _statistics(self, hidden: Tensor) -> _Base:
        parts = [self._base_of(rows) for rows in hidden.split(_ROWS)]
        return _Base(hidden, *(torch.cat(column) for column in zip(*parts, strict=True)))

    def _base_of(self, rows: Tensor) -> tuple[Tensor, ...]:
        logits = self._product(rows)
        lse = logits.logsumexp(1)
        best, top = logits.topk(min(_EXACT, logits.shape[1]), 1)
        confidence = (best[:, 0] - lse).double().exp()
        if not self.head.plain:
            return rows.new_empty(len(rows), 0), lse, torch.zeros_like(confidence), top, confidence
        log_sum, p = self._log_sum(logits, logits.amax(1), rows, lse, top)
        mean_row = torch.zeros(rows.shape, dtype=torch.float64)
        for part, weight in zip(p.split(_BLOCK, 1), self.head.weight.split(_BLOCK), strict=True):
            mean_row += (part @ weight).double()
        change = self._exact(rows, lse, top).exp() - p.gather(1, top).double()
        mean_row += torch.einsum("rk,rkd->rd", change, self.head.weight[top].double())
        return mean_row / log_sum.exp().unsqueeze(1), lse, log_sum, top, confidence

    def _exact(self, hidden: Tensor, lse: Tensor, top: Tensor) -> Tensor:
        """Shifted logits of the tokens `top`, in fp64."""
        return torch.einsum("rd,rkd->rk", hidden.double(), self.head.weight[top].double()) - lse.double().unsqueeze(1)

    def _log_sum(self, logits: Tensor, most: Tensor, hidden: Tensor, lse: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum of exp(`logits` - lse), the terms of `top` taken in fp64; and the terms in fp32, in place of `logits`.

        most: each row's largest logit. An edit that destroys the model may overflow fp32: the terms of a row are then all scaled alike.
        """
        ahead = most - lse
        shift = ahead if bool(ahead.amax() > 80) else torch.zeros_like(ahead)
        exact = (self._exact(hidden, lse, top) - shift.double().unsqueeze(1)).exp()
        e = logits.sub_((lse + shift).unsqueeze(1)).exp_()
        total = e.sum(1).double() + (exact - e.gather(1, top).double()).sum(1)
        return total.log() + shift.double(), e

    def _cheap(self, hidden: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """(kld, agree, lost) of each part of the rows, by the identity at the top."""
        for part in parts_of(len(hidden)):
            yield self._cheap_part(part, hidden[part])[:3]

    def _cheap_part(self, part: slice, now: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(kld, agree, lost) of some rows, and what the edited distribution is proportional to [rows, vocabulary]."""
        base, lse, top = self.base, self.base.lse[part], self.base.top[part]
        logits = self._product(now)
        most = logits.amax(1)
        agree, lost = _ranks(logits, most, top[:, 0])
        log_sum, e = self._log_sum(logits, most, now, lse, top)
        moved = (base.mean_row[part] * (now.double() - base.hidden[part].double())).sum(1)
        return log_sum - base.log_sum[part] - moved, agree, lost, e

    def _full(self, hidden: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """(kld, agree, lost, tv), from both distributions over the whole vocabulary."""
        head_now = self.head if self.head.same_as(self.model) else heads.of(self.model)
        for part in parts_of(len(hidden)):
            logits = head_now.logits(hidden[part])
            agree, lost = _ranks(logits, logits.amax(1), self.base.top[part, 0])
            log_q = logits.log_softmax(1)
            log_p = self.head.logits(self.base.hidden[part]).log_softmax(1)
            p = log_p.exp()
            tv = (p - log_q.exp()).abs_().sum(1).double() / 2
            yield (p * (log_p - log_q)).sum(1).double(), agree, lost, tv


def parts_of(rows: int) -> list[slice]:
    """The rows in the parts in which stock and edited states meet the head: equal shapes give equal bits."""
    return [slice(start, start + _ROWS) for start in range(0, rows, _ROWS)]


def _ranks(logits: Tensor, most: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the stock's most likely token `top` is the most likely one, and whether TOP_K or more others are likelier; [rows]. `most`:
    each row's largest logit."""
    own = logits.gather(1, top.unsqueeze(1))
    agree = own.squeeze(1) >= most
    lost = torch.zeros_like(agree)
    away = (~agree).nonzero().squeeze(1)
    lost[away] = (logits[away] > own[away]).sum(1) >= TOP_K
    return agree, lost


def _parts(model: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    """The decoder layers and the last norm of a transformers causal model."""
    trunk = getattr(model, "base_model", None)
    layers, norm = getattr(trunk, "layers", None), getattr(trunk, "norm", None)
    if trunk is None or trunk is model or layers is None or norm is None:
        raise BadRequest(f"{type(model).__name__}: no decoder with layers and a final norm found in it")
    return layers, norm
