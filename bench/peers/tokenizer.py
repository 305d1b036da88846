"""A tokenizer for tools that insist on one: every word of its small vocabulary is one token, however the text is cut.

With it a tool that counts by tokenizing the text is right by construction: what it gets wrong is not the tokenizer's fault.
"""

from __future__ import annotations

import json
from pathlib import Path

_SPECIAL = ("<unk>", "<s>", "</s>")
_WORDS = tuple(f"w{number}" for number in range(1000))
_TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def text(words: int) -> str:
    """`words` words, each one token."""
    return " ".join(_WORDS[number % len(_WORDS)] for number in range(words))


def write(folder: Path) -> Path:
    """tokenizer.json and what transformers wants beside it; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*_SPECIAL, "tok", *_WORDS]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": name, **flags} for number, name in enumerate(_SPECIAL)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {name: number for number, name in enumerate(names)}, "unk_token": "<unk>"},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    config |= {"model_max_length": 100_000, "chat_template": _TEMPLATE}  # type: ignore[dict-item]
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(names), "hidden_size": 8}
    model |= {"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 100_000}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config), ("config.json", model)):
        (folder / name).write_text(json.dumps(content))
    return folder
