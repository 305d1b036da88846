"""A tiny random Qwen3-MoE model with tokenizer and chat template, 4 MB, made with the standard library alone.

    python -m tests.testbed.model [FOLDER] [--seed N]

The same seed gives the same bytes everywhere (no libm is involved). Every size divides by 2 ranks, and the experts'
sizes by 256, so that their halves are whole 128-blocks, which EXL3 needs. Its text is noise; two runs agree on it.
"""

import argparse
import itertools
import json
import random
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.vllm_env import CACHE

SPECIAL = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>")
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "float32",  # to compute in; the file holds bfloat16, which not every CPU can compute in
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
SPREAD = 0.05  # standard deviation of every matrix: large enough that the best token leads clearly

Shape = tuple[int, ...]


def make(folder: Path = CACHE / "tiny-qwen3-moe", seed: int = 0) -> Path:
    """Write the model into `folder`, over what is there, and return it. About a second."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(dict(tensors(seed))))
    _write_json(folder / "config.json", CONFIG)
    _write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0})
    _write_json(folder / "tokenizer.json", tokenizer())
    _write_json(folder / "tokenizer_config.json", tokenizer_config())
    return folder


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


# --- weights ---


def shapes() -> Iterator[tuple[str, Shape]]:
    """Name and shape [out, in] of every tensor, as Qwen3-MoE checkpoints have them."""
    hidden, vocab = 256, 512
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(2):
        yield from ((f"model.layers.{layer}.{name}.weight", shape) for name, shape in _layer_shapes(hidden))
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def _layer_shapes(hidden: int) -> Iterator[tuple[str, Shape]]:
    yield "input_layernorm", (hidden,)
    yield "post_attention_layernorm", (hidden,)
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        yield f"self_attn.{name}_proj", (heads * 64, hidden)
    yield "self_attn.o_proj", (hidden, 4 * 64)
    yield "self_attn.q_norm", (64,)
    yield "self_attn.k_norm", (64,)
    yield "mlp.gate", (4, hidden)
    for expert, name in itertools.product(range(4), ("gate_proj", "up_proj", "down_proj")):
        yield f"mlp.experts.{expert}.{name}", (256, 256)


def tensors(seed: int) -> Iterator[tuple[str, tuple[Shape, bytes]]]:
    """Name -> (shape, bfloat16 bytes, row-major). Norms are one; matrices are uniform with deviation SPREAD."""
    source = random.Random(seed)
    for name, shape in shapes():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        yield name, (shape, bfloat16(array("f", [1.0]) * count if len(shape) == 1 else uniform(source, count)))


def uniform(source: random.Random, count: int) -> "array[float]":
    step = SPREAD * 12**0.5 / 65536
    whole = array("H", source.randbytes(2 * count))
    if sys.byteorder == "big":
        whole.byteswap()
    return array("f", [(value - 32767.5) * step for value in whole])


def bfloat16(values: "array[float]") -> bytes:
    """The upper halves of little-endian float32 values (cut, not rounded)."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    raw = values.tobytes()
    halves = bytearray(len(raw) // 2)
    halves[0::2] = raw[2::4]
    halves[1::2] = raw[3::4]
    return bytes(halves)


def safetensors(content: dict[str, tuple[Shape, bytes]]) -> bytes:
    """A safetensors file: header length as little-endian u64, JSON header padded to 8 bytes, then the data in order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in content.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, data in content.values())


# --- tokenizer ---


def byte_letters() -> list[str]:
    """The letter that stands for each byte value in byte-level BPE: itself if printable, else one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    spare = itertools.count(256)
    return [chr(value) if value in printable else chr(next(spare)) for value in range(256)]


def merges(count: int) -> list[tuple[str, str]]:
    """Pairs of letters that become one token: space + letter, then common pairs."""
    space = byte_letters()[ord(" ")]
    letters = "etaoinshrdlucmfwypvbgk"
    pairs = itertools.chain(((space, letter) for letter in letters), itertools.product(letters, letters))
    return list(itertools.islice(pairs, count))


def tokenizer(special: tuple[str, ...] = SPECIAL) -> dict[str, object]:
    """tokenizer.json with exactly as many tokens as the model has, so that every id it can emit has a text."""
    words = [*special, *byte_letters()]
    joins = merges(512 - len(words))
    words += [left + right for left, right in joins]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **flags} for number, word in enumerate(special)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [list(pair) for pair in joins],
        },
    }


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.model", description="Write a tiny random Qwen3-MoE model.")
    parser.add_argument("folder", nargs="?", type=Path, default=CACHE / "tiny-qwen3-moe")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = make(args.folder, args.seed)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder} {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
