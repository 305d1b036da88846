"""Greedy answers of many prompts at once, and the state that gives the first token, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ablit.classify import Answer
from ablit.lean import Lean, Memory


@dataclass
class Chat:
    """Prompts in the model's chat form, left-padded [rows, time]; `start`: where each begins; entries as in panel.Stock."""

    lean: Lean
    tokenizer: Any
    ids: Tensor
    start: Tensor
    ends: frozenset[int]
    entries: dict[int, tuple[Tensor, Memory]] = field(default_factory=dict)

    def entry(self, layer: int, room: int) -> tuple[Tensor, Memory]:
        """The residual entering `layer` and a memory whose layers below it are filled; the caller may write to its copy."""
        if layer not in self.entries:
            memory = self.lean.memory(len(self.ids), self.ids.shape[1] + room, self.start)
            x = self.lean.embed(self.ids)
            self.entries[layer] = (self.lean.step(x, 0, memory, layer), memory)
        x, memory = self.entries[layer]
        return x, Memory([k.clone() for k in memory.keys], [v.clone() for v in memory.values], memory.start)


def chat(lean: Lean, tokenizer: Any, prompts: Sequence[str], ends: frozenset[int]) -> Chat:
    rows = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=True, return_dict=False)
        for p in prompts
    ]
    time = max(map(len, rows))
    ids = torch.tensor([[0] * (time - len(row)) + list(row) for row in rows])
    return Chat(lean, tokenizer, ids, torch.tensor([time - len(row) for row in rows]), ends)


def begun(asked: Chat, first: int, room: int) -> tuple[Tensor, Memory]:
    """The model as it is now, when layers below `first` are unedited: normed state [rows, hidden] before the first answer token, and the
    memory to go on with."""
    x, memory = asked.entry(first, room)
    state = asked.lean.final(asked.lean.step(x, first, memory)[:, -1])
    memory.used = asked.ids.shape[1]
    return state, memory


def answers(asked: Chat, first: int, length: int) -> tuple[Tensor, list[Answer]]:
    """As `begun`: the state before the first token, and the greedy answers of at most `length` tokens.

    Rows that ended leave the batch, so a short answer costs little.
    """
    lean, (state, memory) = asked.lean, begun(asked, first, length)
    said: list[list[int]] = [[] for _ in asked.ids]
    rows, now = torch.arange(len(said)), (state @ lean.head.T).argmax(1)
    for spoken in range(1, length + 1):
        for row, token in zip(rows.tolist(), now.tolist(), strict=True):
            said[row].append(token)
        alive = torch.tensor([token not in asked.ends for token in now.tolist()])
        if spoken == length or not alive.any():
            break
        if not alive.all():
            rows, now = rows[alive], now[alive]
            memory.keep(alive)
        x = lean.step(lean.embed(now.unsqueeze(1)), 0, memory)
        memory.used += 1
        now = (lean.final(x[:, -1]) @ lean.head.T).argmax(1)
    return state, [_answer(asked, tokens) for tokens in said]


def _answer(asked: Chat, tokens: list[int]) -> Answer:
    text = asked.tokenizer.decode(tokens, skip_special_tokens=True)
    return Answer(text, tokens[-1] in asked.ends, len(tokens))
