"""What is read from a folder's headers, and every contradiction that must stop a start."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from vllm_glm_exl3 import checkpoint, codec
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.spec import Spec

from tests.overlay.models import random_weight

EXPERT = "model.language_model.layers.1.mlp.experts"
ROUTED = {"bits": 4, "codebook": "mcg", "scope": "routed_experts_only"}


def experts(bits: int = 4, codebook: int = codec.MCG) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {"model.language_model.layers.1.mlp.gate.weight": torch.zeros(2, 128)}
    for number in range(2):
        for name in ("gate_proj", "up_proj", "down_proj"):
            found |= random_weight(128, 128, bits, codebook).stored(f"{EXPERT}.{number}.{name}")
    return found


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[dict[str, Tensor]], checkpoint.Stored]:
    def write(tensors: dict[str, Tensor]) -> checkpoint.Stored:
        save_file(tensors, tmp_path / "model.safetensors")
        return checkpoint.read(tmp_path)

    return write


Write = Callable[[dict[str, Tensor]], checkpoint.Stored]


def test_what_is_read(stored: Write) -> None:
    found = stored(experts() | random_weight(256, 128, 3, codec.MUL1).stored("model.layers.0.mlp.up_proj"))
    assert found.modules["layers.0.mlp.up_proj"] == checkpoint.Module(3.0, (256, 128), "mul1")
    assert found.routed_bits == {("layers.1.mlp.experts", "gate_up_proj"): {4.0}, ("layers.1.mlp.experts", "down_proj"): {4.0}}
    assert found.names == {"layers.1.mlp.gate.weight"}


def test_a_pack_that_is_what_it_says(stored: Write) -> None:
    found = stored(experts())
    checkpoint.check(Spec.parse(ROUTED), found, "glm5_next")
    checkpoint.check(Spec.parse({"bits": 4.07}), found)  # an average binds nothing


@pytest.mark.parametrize(
    ("declared", "extra", "said"),
    [
        ({**ROUTED, "bits": 3}, {}, r"layers\.1\.mlp\.experts\.0\.\w+: stored with 4 bits per weight, while the configuration says 3"),
        (
            {**ROUTED, "layer_bits": {"1": {"down_proj": 5}}},
            {},
            r"down_proj: stored with 4 bits per weight, while the configuration says 5",
        ),
        ({**ROUTED, "codebook": "mul1"}, {}, r"stored with codebook mcg, while the configuration says mul1"),
        (
            ROUTED,
            {"model.layers.0.self_attn.o_proj": 4},
            r"routed experts only, but 1 other modules are stored in EXL3: layers\.0\.self_attn\.o_proj",
        ),
        ({"bits": 4}, {"lm_head": 6}, r"a quantized lm_head is not supported"),
        (
            {"bits": 4},
            {"model.layers.0.linear_attn.o_proj": 4},
            r"dense EXL3 is not supported for glm5_next: .*: layers\.0\.linear_attn\.o_proj",
        ),
        (
            {**ROUTED, "non_routed_quantization": {"quant_method": "fp8"}},
            {},
            r"non_routed_quantization says fp8, but no tensor of the files is an FP8 scale",
        ),
    ],
)
def test_contradictions(stored: Write, declared: dict[str, object], extra: dict[str, int], said: str) -> None:
    tensors = experts()
    for name, bits in extra.items():
        tensors |= random_weight(128, 128, bits).stored(name)
    with pytest.raises(UnknownPack, match=said):
        checkpoint.check(Spec.parse(declared), stored(tensors), "glm5_next")


def test_fp8_beside_experts(stored: Write) -> None:
    tensors = experts() | {"model.layers.0.self_attn.o_proj.weight_scale_inv": torch.zeros(1)}
    checkpoint.check(Spec.parse({**ROUTED, "non_routed_quantization": {"quant_method": "fp8"}}), stored(tensors))


def test_fractional_bits(stored: Write) -> None:
    tensors = experts() | {"model.layers.0.mlp.up_proj.trellis": torch.zeros(8, 8, 40, dtype=torch.int16)}
    with pytest.raises(UnknownPack, match=r"fractional K is not supported: 1 modules, first layers\.0\.mlp\.up_proj with 2\.5 bits"):
        checkpoint.check(Spec.parse({"bits": 2.5}), stored(tensors))


def test_old_signs(stored: Write) -> None:
    with pytest.raises(UnknownPack, match="old su/sv signs"):
        stored(experts() | {f"{EXPERT}.0.up_proj.su": torch.zeros(8, dtype=torch.int16)})


def test_no_experts_in_exl3(stored: Write) -> None:
    with pytest.raises(UnknownPack, match="the files hold no EXL3 tensor"):
        checkpoint.check(Spec.parse(ROUTED), stored({"model.norm.weight": torch.zeros(4)}))


def test_an_index_that_leaves_tensors_out(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    index = tmp_path / checkpoint.INDEX
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(UnknownPack, match=r"does not list 1 tensors that are in the files, and vLLM would skip them: b"):
        checkpoint.read(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(UnknownPack, match=r"lists 1 files that are not there: model-2\.safetensors"):
        checkpoint.read(tmp_path)
