"""The forward pass of a Llama-family model over its own weights, cut where the lab needs it.

transformers runs whole models; here a pass may begin at any layer with the residual that enters it
(what lies below an edit is computed once), keeps keys and values in one buffer, and drops finished rows.
The figures are transformers' own up to rounding; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.errors import BadRequest
from bench.kld.head import product

Product = Callable[[Tensor], Tensor]  # as bench.kld.head.product gives
_ROWS = 64  # of a pass with packed weights: an answer's step has a row a prompt, the prompts' own pass some hundreds
_SPOTS = 32  # positions at a time in `causal`: few of the scores that are formed are of later positions
_LATER = torch.full((_SPOTS, _SPOTS), -torch.inf).triu_(1).unsqueeze(1)  # added to scores of positions not yet seen


@dataclass(frozen=True)
class Products:
    """The products with weights in a layer. `qkv` gives the features of a query's or key's head in the order of `_in_pairs`."""

    qkv: Product
    gate: Product
    up: Product
    out: Product
    down: Product


@dataclass
class Memory:
    """Keys and values of all layers, [rows, kv heads, room, head], of which the first `used` positions are filled.

    The first `prefix` positions are the same text in every row; from there to `start` [rows] a row has padding, which nobody sees.
    `products`: of Lean.packed or `joint`; without them each pass reads what edits touch as it then is.
    """

    keys: list[Tensor]
    values: list[Tensor]
    start: Tensor
    prefix: int = 0
    used: int = 0
    products: list[Products] | None = None

    def of(self, rows: Tensor, used: int) -> Memory:
        """A copy of some rows, to go on at position `used`."""
        keys, values = [each[rows] for each in self.keys], [each[rows] for each in self.values]
        return Memory(keys, values, self.start[rows], self.prefix, used, self.products)

    def put(self, rows: Tensor, part: Memory, layers: slice) -> None:
        """Take back what `of` gave, for these layers."""
        for whole, some in zip(self.keys[layers] + self.values[layers], part.keys[layers] + part.values[layers], strict=True):
            whole[rows] = some

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.keys = [each[rows] for each in self.keys]
        self.values = [each[rows] for each in self.values]
        self.start = self.start[rows]


class Lean:
    """`model`: an unedited transformers LlamaForCausalLM without biases. What edits touch (o_proj, down_proj) is read in place, so that an
    edit is seen at once; of the rest of the layers and the head, copies are kept."""

    def __init__(self, model: Any) -> None:
        config = model.config
        if why := unsupported(model):
            raise BadRequest(f"{config.model_type} cannot be swept here: {why}\ntry: a Llama-family model, or --kit for a served one")
        self.layers = list(model.model.layers)
        self.embedding: Tensor = model.model.embed_tokens.weight
        self.norm: Tensor = model.model.norm.weight
        # the head is always fp32: logits rounded to bf16 move single positions by 0.2 nats
        self.head: Tensor = model.lm_head.weight.detach().float()
        self.logits: Product = product(self.head, _ROWS)
        self.eps = float(config.rms_norm_eps)
        self.heads, self.kv = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.size = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.frequency: Tensor = model.model.rotary_emb.inv_freq.float()
        self._stock = [self._products(layer) for layer in self.layers]
        self._plain = [
            replace(stock, out=_read(each.self_attn.o_proj), down=_read(each.mlp.down_proj))
            for stock, each in zip(self._stock, self.layers, strict=True)
        ]

    def packed(self, first: int = 0, edits: Collection[tuple[int, str]] | None = None) -> list[Products]:
        """Products with the weights of the layers from `first` on as they are now: copies, which stay when an edit is taken back.

        edits: which (layer, target) are edited; of the others, the copies made with this object are given. None: any may be edited.
        """
        found = list(self._stock)
        for number, layer in enumerate(self.layers[first:], first):
            if edits is None or (number, "o_proj") in edits:
                found[number] = replace(found[number], out=_copied(layer.self_attn.o_proj.weight))
            if edits is None or (number, "down_proj") in edits:
                found[number] = replace(found[number], down=_copied(layer.mlp.down_proj.weight))
        return found

    def embed(self, ids: Tensor) -> Tensor:
        """[rows, time] -> [rows, time, hidden]."""
        return functional.embedding(ids, self.embedding)

    def rotation(self, positions: Tensor) -> Tensor:
        """Complex [rows, time, 1, head / 2] of length 1, by which positions [rows, time] turn a pair of features."""
        angle = (positions.unsqueeze(-1).float() * self.frequency).unsqueeze(2)
        return torch.polar(torch.ones_like(angle), angle)

    def memory(self, room: int, start: Tensor, prefix: int = 0) -> Memory:
        shape = (len(start), self.kv, room, self.size)
        empty = [torch.zeros(shape, dtype=self.embedding.dtype) for _ in range(2 * len(self.layers))]
        return Memory(empty[::2], empty[1::2], start, prefix)

    def attend(self, x: Tensor, number: int) -> Tensor:
        """What layer `number` attends to in whole texts, [rows, time, heads * head], from the residual that enters it. An edit of that
        layer's own projections does not change it."""
        q, k, v = self._qkv(self.layers[number], self._plain[number], x, self.rotation(torch.arange(x.shape[1]).unsqueeze(0)))
        return causal(q, k, v)

    def window(self, x: Tensor, first: int, last: int, packed: list[Products] | None = None, attended: Tensor | None = None) -> Tensor:
        """Whole texts: the residual [rows, time, hidden] that enters layer `first` -> the one that leaves layer `last` - 1.

        packed: of self.packed; without them the weights are read as they are. attended: what `attend` gives of layer `first`, if known.
        """
        for number in range(first, last):
            seen = attended if number == first and attended is not None else self.attend(x, number)
            x = self._rest(self.layers[number], (packed or self._plain)[number], x, seen)
        return x

    def step(self, x: Tensor, first: int, memory: Memory, last: int | None = None) -> Tensor:
        """More positions: x [rows, time, hidden] enters layer `first` at memory.used; fills the layers up to `last`. Without
        `last` what leaves is of the last position only, [rows, 1, hidden].

        The prefix may be given as one row, which then stands for all. The caller moves memory.used when every layer has been filled.
        """
        rows, time = x.shape[:2]
        used, end, start = memory.used, memory.used + time, memory.start[:rows]
        spots, seen = torch.arange(used, end), torch.arange(end).view(1, 1, 1, -1)
        late = spots >= memory.prefix
        turn = self.rotation(torch.where(late, (spots - start.unsqueeze(1) + memory.prefix).clamp(min=0), spots.expand(rows, -1)))
        mask = (seen <= spots.view(1, 1, -1, 1)) & ((seen < memory.prefix) | (seen >= start.view(-1, 1, 1, 1)))
        mask = mask | (seen == spots.view(1, 1, -1, 1))  # padding sees itself: a row without any key gives NaN
        for number, layer in enumerate(self.layers[first:last], first):
            products = (memory.products or self._plain)[number]
            q, k, v = self._qkv(layer, products, x, turn)
            memory.keys[number][:, :, used:end] = k
            memory.values[number][:, :, used:end] = v
            k, v = memory.keys[number][:rows, :, :end], memory.values[number][:rows, :, :end]
            if last is None and number == len(self.layers) - 1:
                q, x, mask = q[:, :, -1:], x[:, -1:], mask[:, :, -1:]
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            x = self._rest(layer, products, x, attended.transpose(1, 2).flatten(2))
        return x

    def final(self, x: Tensor) -> Tensor:
        """The normed hidden state that the head reads, fp32."""
        return self._rms(x, self.norm).float()

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return functional.rms_norm(x, x.shape[-1:], None, self.eps).mul_(weight)
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)

    def _qkv(self, layer: Any, products: Products, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = products.qkv(self._rms(x, layer.input_layernorm.weight)).view(*x.shape[:2], -1, self.size)
        both = self.heads + self.kv
        turned = _turned(heads[:, :, :both], turn).transpose(1, 2)
        return turned[:, : self.heads], turned[:, self.heads :], heads[:, :, both:].transpose(1, 2)

    def _rest(self, layer: Any, products: Products, x: Tensor, attended: Tensor) -> Tensor:
        x = products.out(attended).add_(x)
        normed = self._rms(x, layer.post_attention_layernorm.weight)
        return products.down(functional.silu(products.gate(normed), inplace=True).mul_(products.up(normed))).add_(x)

    def _products(self, layer: Any) -> Products:
        at, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([self._in_pairs(at.q_proj.weight), self._in_pairs(at.k_proj.weight), at.v_proj.weight])
        return Products(
            _kept(qkv), _kept(mlp.gate_proj.weight), _kept(mlp.up_proj.weight), _copied(at.o_proj.weight), _copied(mlp.down_proj.weight)
        )

    def _in_pairs(self, weight: Tensor) -> Tensor:
        """[heads * head, hidden] with the two features that a rotation mixes beside each other: a complex number each. The model has them
        half a head apart; attention is the same sum in another order."""
        return weight.view(-1, 2, self.size // 2, weight.shape[1]).transpose(1, 2).flatten(0, 2)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q [rows, heads, time, head] over k, v [rows, kv heads, time, head] -> [rows, time, heads * head], in fp32.

    Some positions at a time against all that they see, with the query heads of a kv head in one product: 15 ms where torch's own kernel
    takes 20 (AVX2, one thread, 2 texts of 512 tokens, 9 heads of 64 on 3).
    """
    rows, heads, time, size = q.shape
    group, flat = heads // k.shape[1], rows * k.shape[1]
    queries = (q.float() * size**-0.5).unflatten(1, (-1, group)).transpose(2, 3).reshape(flat, time * group, size)
    keys, values = (each.float().reshape(flat, time, size) for each in (k, v))
    found = torch.empty_like(queries)
    for begin in range(0, time, _SPOTS):
        end = min(begin + _SPOTS, time)
        part = slice(begin * group, end * group)
        scores = torch.bmm(queries[:, part], keys[:, :end].transpose(1, 2))
        scores.unflatten(1, (-1, group))[..., begin:].add_(_LATER[: end - begin, :, : end - begin])
        torch.bmm(scores.softmax(-1), values[:, :end], out=found[:, part])
    return found.view(rows, -1, time, group, size).transpose(1, 2).reshape(rows, time, -1).to(q.dtype)


def joint(parts: Sequence[list[Products]], sizes: Sequence[int]) -> list[Products]:
    """For rows of several edits of one model, sizes[i] of them of parts[i], in order: what no edit touches is one product for all rows."""
    layers = zip(*parts, strict=True)
    return [replace(each[0], out=_shared([p.out for p in each], sizes), down=_shared([p.down for p in each], sizes)) for each in layers]


def _shared(products: Sequence[Product], sizes: Sequence[int]) -> Product:
    if all(each is products[0] for each in products):
        return products[0]
    pairs = [(each, size) for each, size in zip(products, sizes, strict=True) if size]
    return lambda x: torch.cat([each(part) for (each, _), part in zip(pairs, x.split([size for _, size in pairs]), strict=True)])


def _kept(weight: Tensor) -> Product:
    """Of a weight that no edit touches."""
    return product(weight, _ROWS) if weight.dtype == torch.float32 else partial(functional.linear, weight=weight)


def _copied(weight: Tensor) -> Product:
    """Of a weight as it is now."""
    return _kept(weight.detach().clone())


def _read(module: Any) -> Product:
    """Of a weight as it is when this is called."""
    return lambda x: functional.linear(x, module.weight)


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary embedding of x [rows, time, heads, head], whose features are in pairs; in place in fp32."""
    wide = x if x.dtype == torch.float32 else x.float()
    torch.view_as_complex(wide.unflatten(-1, (-1, 2))).mul_(turn)
    return wide.to(x.dtype)


def unsupported(model: Any) -> str | None:
    """Why the lean pass does not fit the model; None when it does."""
    config = model.config
    if config.model_type != "llama":
        return f"the lean pass knows the Llama family, not {config.model_type}"
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default":
        return "its rotary embedding is scaled"
    if any(name.endswith(".bias") for name, _ in model.named_parameters()):
        return "it has biases"
    return None
