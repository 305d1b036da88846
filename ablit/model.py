"""Loading a model for the lab: a transformers folder, or a GGUF that is converted once (bench/kld/model.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ablit.receipt import Model
from bench.errors import BadRequest
from bench.kld.model import cache, converted, sha256_of

LOCAL = "SmolLM2-135M-Instruct.Q4_1.gguf"  # the local kit's weights, where `invoke download --kit local` puts them
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer; `ends`: tokens that end an answer."""

    model: Any
    tokenizer: Any
    facts: Model
    ends: frozenset[int]


def load(path: Path | None, dtype: str, say: Callable[[str], None]) -> Loaded:
    """`path`: a folder with config.json and safetensors, or a .gguf; None: the local kit's. Raises BadRequest."""
    source = path or cache() / LOCAL
    folder = converted(source, say) if source.suffix == ".gguf" else source
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not weights:
        raise BadRequest(f"no model in {folder}: config.json and *.safetensors are wanted\ntry: a transformers folder, or a .gguf file")
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval().requires_grad_(False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise BadRequest(f"{folder} cannot be loaded as a model: {error}") from error
    digest = sha256_of(weights[0]) if len(weights) == 1 else _together(weights)
    config = model.config
    facts = Model(name=folder.name, sha256=digest, layers=config.num_hidden_layers, hidden=config.hidden_size, dtype=dtype)
    return Loaded(model, tokenizer, facts, _ends(model, tokenizer))


def _together(files: list[Path]) -> str:
    import hashlib

    return hashlib.sha256(" ".join(sha256_of(file) for file in files).encode()).hexdigest()


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    named = model.generation_config.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return frozenset(int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None)
