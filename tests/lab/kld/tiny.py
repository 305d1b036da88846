"""Random models of a few thousand weights, and the real one."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bench.kld.windows import Window

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def llama(**more: Any) -> Any:
    """Four layers, 32 wide, 101 tokens. The weights are large, so that edits matter."""
    torch.manual_seed(7)
    sizes = {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**{**sizes, "num_key_value_heads": 2, "initializer_range": 0.3, "tie_word_embeddings": False, **more})
    return transformers.LlamaForCausalLM(config).eval()


def gemma2() -> Any:
    """A model whose logits are capped, which the cheap form cannot do."""
    torch.manual_seed(7)
    config = transformers.Gemma2Config(
        vocab_size=101, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        final_logit_softcapping=3.0, initializer_range=0.3, attn_implementation="eager",
    )  # fmt: skip
    return transformers.Gemma2ForCausalLM(config).eval()


def windows(count: int = 5, positions: int = 12) -> list[Window]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 101, (count, positions + 1), generator=generator).tolist()
    return [Window(f"w-{number}", "prose", tuple(row)) for number, row in enumerate(ids)]


def edit(model: Any, layers: range, alpha: float, seed: int = 1) -> None:
    """W <- (I - alpha r r^T) W at every o_proj of `layers`, r a random unit vector."""
    width = model.config.hidden_size
    r = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    r /= r.norm()
    with torch.no_grad():
        for layer in layers:
            weight = model.base_model.layers[layer].self_attn.o_proj.weight
            weight -= alpha * torch.outer(r, r @ weight)


def exact(before: torch.Tensor, after: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """KL in fp64 over the whole vocabulary from the states after the last norm, [windows, positions]."""
    found = []
    for p, q in zip(before.double().flatten(0, 1).split(64), after.double().flatten(0, 1).split(64), strict=True):
        log_p, log_q = (p @ weight.double().T).log_softmax(1), (q @ weight.double().T).log_softmax(1)
        found.append((log_p.exp() * (log_p - log_q)).sum(1))
    return torch.cat(found).reshape(before.shape[:2])


def missing(what: str, hint: str) -> None:
    """A missing real part fails in CI and is skipped on a user's machine."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: {hint}")
    pytest.skip(f"{what} is missing; to run this test: {hint}")


def real_gguf() -> Path:
    """The local kit's own model file."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab" / GGUF
    if not path.is_file():
        missing(str(path), "invoke up --kit local, once")
    return path
