"""Greedy answers of many prompts at once, and the state that gives the first token, in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ablit.classify import Answer
from ablit.lean import Lean, Memory, joint

_ALIKE = 8  # rows of like length that go through the layers together: less padding, and still some hundred positions a product


@dataclass
class Chat:
    """Prompts in the model's chat form. What all begin with (the chat template's first turn) is `prefix` [1, time] and computed once;
    the rest is `ids` [rows, time], left-padded. `start`: at which position of the whole a row's rest begins; `entries` as in panel.Stock.
    """

    lean: Lean
    tokenizer: Any
    prefix: Tensor
    ids: Tensor
    start: Tensor
    ends: frozenset[int]
    entries: dict[int, tuple[Tensor, Tensor, Memory]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return int(self.prefix.shape[1] + self.ids.shape[1])

    def entry(self, layer: int, room: int) -> tuple[Tensor, Tensor, Memory]:
        """The residuals of prefix and rest entering `layer`, and a memory of its own for the caller, filled below that layer."""
        if layer not in self.entries or self.entries[layer][2].keys[0].shape[2] < self.length + room:
            memory = self.lean.memory(self.length + room, self.start, self.prefix.shape[1])
            prefix, rest = self.through(self.lean.embed(self.prefix), self.lean.embed(self.ids), memory, 0, layer)
            self.entries[layer] = prefix, rest, memory
        prefix, rest, memory = self.entries[layer]
        copied = Memory([k.clone() for k in memory.keys], [v.clone() for v in memory.values], memory.start, memory.prefix)
        return prefix, rest, copied

    def through(self, prefix: Tensor, rest: Tensor, memory: Memory, first: int, last: int | None) -> tuple[Tensor, Tensor]:
        """Both through layers first to `last` - 1; memory.used is 0 before and after."""
        if prefix.shape[1]:
            prefix = self.lean.step(prefix, first, memory, last)
        found = torch.zeros_like(rest if last is not None else rest[:, -1:])
        for rows in self.start.argsort().split(_ALIKE):
            some = self._some(rest, rows, memory, first, last)
            found[rows, -some.shape[1] :] = some
        return prefix, found

    def _some(self, rest: Tensor, rows: Tensor, memory: Memory, first: int, last: int | None) -> Tensor:
        """Rows of like length through the layers, less the padding that all of them have."""
        begin = int(self.start[rows].min())
        part = memory.of(rows, begin)
        found = self.lean.step(rest[rows, begin - self.prefix.shape[1] :], first, part, last)
        memory.put(rows, part, slice(first, last))
        return found


def chat(lean: Lean, tokenizer: Any, prompts: Sequence[str], ends: frozenset[int]) -> Chat:
    def form(prompt: str) -> list[int]:
        turn = [{"role": "user", "content": prompt}]
        return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False))

    rows = [form(prompt) for prompt in prompts]
    # each row keeps a token of its own, and the state before the answer is that of its last one
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, zip(*(row[:-1] for row in rows), strict=False)))
    time = max(map(len, rows)) - shared
    ids = torch.tensor([[0] * (time - len(row) + shared) + row[shared:] for row in rows])
    start = torch.tensor([time + 2 * shared - len(row) for row in rows])
    return Chat(lean, tokenizer, torch.tensor([rows[0][:shared]], dtype=torch.int64), ids, start, ends)


def begun(asked: Chat, first: int, room: int, edits: Collection[tuple[int, str]] | None = None) -> tuple[Tensor, Memory]:
    """The model as it is now, when layers below `first` are unedited: normed state [rows, hidden] before the first answer token, and the
    memory to go on with, also when the edit has been taken back. edits: as of Lean.packed."""
    prefix, rest, memory = asked.entry(first, room)
    memory.products = asked.lean.packed(first, edits)
    _, rest = asked.through(prefix, rest, memory, first, None)
    memory.used = asked.length
    return asked.lean.final(rest[:, -1]), memory


def answers(asked: Chat, first: int, length: int, silent: int = 0) -> tuple[Tensor, list[Answer]]:
    """As `begun`: the state before the first token, and the greedy answers of at most `length` tokens. silent: as of `together`."""
    state, memory = begun(asked, first, length)
    return state, together(asked, [(state, memory)], length, silent)[0]


def together(asked: Chat, parts: Sequence[tuple[Tensor, Memory]], length: int, silent: int = 0) -> list[list[Answer]]:
    """The greedy answers of at most `length` tokens of several edits, each `begun` (and used up). A step reads every weight whether for few
    rows or for sixty, so several edits' rows in one step cost little more than one's.

    silent: so many prompts at the beginning give their state only. Rows that ended leave the batch, so a short answer costs little.
    """
    lean, each = asked.lean, len(asked.ids) - silent
    products = [memory.products or lean.packed() for _, memory in parts]
    memory = _joined([memory for _, memory in parts], silent)
    memory.products = joint(products, [each] * len(parts))
    said: list[list[int]] = [[] for _ in range(each * len(parts))]
    rows = torch.arange(len(said))
    now = torch.cat([lean.logits(state[silent:]).argmax(1) for state, _ in parts])
    for spoken in range(1, length + 1):
        for row, token in zip(rows.tolist(), now.tolist(), strict=True):
            said[row].append(token)
        alive = torch.tensor([token not in asked.ends for token in now.tolist()])
        if spoken == length or not alive.any():
            break
        if not alive.all():
            rows, now = rows[alive], now[alive]
            memory.keep(alive)
            memory.products = joint(products, torch.bincount(rows // each, minlength=len(parts)).tolist())
        x = lean.step(lean.embed(now.unsqueeze(1)), 0, memory)
        memory.used += 1
        now = lean.logits(lean.final(x[:, -1])).argmax(1)
    found = [_answer(asked, tokens) for tokens in said]
    return [found[start : start + each] for start in range(0, len(found), each)]


def _joined(parts: Sequence[Memory], silent: int) -> Memory:
    """The rows of all parts from `silent` on, in order."""
    one, layers = parts[0], range(len(parts[0].keys))
    # taken out of the parts one by one: keys and values of a hundred prompts are half a gigabyte of the 135M model's
    keys = [torch.cat([part.keys.pop(0)[silent:] for part in parts]) for _ in layers]
    values = [torch.cat([part.values.pop(0)[silent:] for part in parts]) for _ in layers]
    return Memory(keys, values, torch.cat([part.start[silent:] for part in parts]), one.prefix, one.used)


def _answer(asked: Chat, tokens: list[int]) -> Answer:
    text = asked.tokenizer.decode(tokens, skip_special_tokens=True)
    return Answer(text, tokens[-1] in asked.ends, len(tokens))
