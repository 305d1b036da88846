"""Loading a model for the lab: a transformers folder, or a GGUF that is converted once (bench/kld/model.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ablit.lean import unsupported
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
    """`path`: a folder with config.json and safetensors, or a .gguf; None: the local kit's.

    Raises BadRequest for what is no model, and for one of a family that the lab does not know.
    """
    source = path or cache() / LOCAL
    folder = converted(source, say) if source.suffix == ".gguf" else source
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not weights:
        raise BadRequest(f"no model in {folder}: config.json and *.safetensors are wanted\ntry: a transformers folder, or a .gguf file")
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval().requires_grad_(False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers and safetensors raise whatever their parsers trip over
        raise BadRequest(f"{folder} cannot be loaded as a model: {_first_line(error)}\ntry: a folder with whole files") from error
    if why := unsupported(model):
        kind = model.config.model_type
        raise BadRequest(f"{folder}: {kind} cannot be edited here: {why}\ntry: a Llama-family model, or --kit for a served one")
    digest = sha256_of(weights[0]) if len(weights) == 1 else _together(weights)
    config = model.config
    facts = Model(name=folder.name, sha256=digest, layers=config.num_hidden_layers, hidden=config.hidden_size, dtype=dtype)
    return Loaded(model, tokenizer, facts, _ends(model, tokenizer))


def refuse_silent(loaded: Loaded) -> None:
    """Raises BadRequest unless prompts can be put into the model's chat form, as every answer and every direction needs."""
    turn = [{"role": "user", "content": "x"}]
    try:
        loaded.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False)
    except Exception as error:  # none there, or jinja cannot run it
        what = f"{loaded.facts.name}: no prompt can be put into chat form: {_first_line(error)}"
        raise BadRequest(f"{what}\ntry: the model's instruct version, or a tokenizer with a chat template") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _together(files: list[Path]) -> str:
    import hashlib

    return hashlib.sha256(" ".join(sha256_of(file) for file in files).encode()).hexdigest()


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    named = model.generation_config.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return frozenset(int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None)
