"""A random Llama of four layers with a byte tokenizer: every path of the lab in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ablit.edit import Vectors
from ablit.evaluate import Ask, Bench, prepare
from ablit.model import Loaded
from ablit.prompts import Prompts
from ablit.receipt import Model

END, HIDDEN, LAYERS = 256, 32, 4
SHA = "a" * 64


class Bytes:
    """A tokenizer: one token a byte, 256 ends a text; the chat form is `>` prompt `<`."""

    eos_token_id = END

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in tokens if token < 256).decode("latin-1")

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> list[int]:
        return self.encode(f">{turns[0]['content']}<")


def loaded(seed: int = 0, dtype: torch.dtype = torch.float32) -> Loaded:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    model = LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)
    model.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=END)
    name = str(dtype).removeprefix("torch.")
    facts = Model(name="tiny", sha256=f"{seed:064x}", layers=LAYERS, hidden=HIDDEN, dtype=name)
    return Loaded(model, Bytes(), facts, frozenset({END}))


def vectors(seed: int = 5, *shape: int) -> Vectors:
    drawn = torch.randn(*(shape or (HIDDEN,)), generator=torch.Generator().manual_seed(seed))
    return Vectors(drawn, SHA, {"name": f"seed-{seed}"})


def bench(tiny: Loaded) -> Bench:
    ask = Ask(Prompts("held.txt", ("one", "another one", "a third, longer"), SHA), "casual", reply_tokens=6)
    return prepare(tiny, [ask], 1, [0, 1, 2], lambda line: None)
