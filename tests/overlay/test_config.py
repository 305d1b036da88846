"""The quantization config inside real vLLM."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from vllm_glm_exl3 import codec
from vllm_glm_exl3.errors import UnknownPack

from tests.overlay.models import random_weight

pytest.importorskip("vllm")
from vllm_glm_exl3.config import Exl3Config

EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pack")
    tensors: dict[str, torch.Tensor] = {}
    for number in range(2):
        for name, bits in (("gate_proj", 3), ("up_proj", 3), ("down_proj", 5)):
            tensors |= random_weight(128, 128, bits).stored(f"{EXPERTS}.{number}.{name}")
    tensors |= random_weight(128, 256, 6, codec.MUL1).stored("model.layers.1.self_attn.q_proj")
    for name in ("k_proj", "v_proj"):
        tensors |= random_weight(128, 128, 4).stored(f"model.layers.1.self_attn.{name}")
    tensors |= random_weight(128, 128).stored("model.layers.2.mlp.gate_proj")
    save_file(tensors, made / "model.safetensors")
    return made


def config(folder: Path | None, **declared: object) -> Exl3Config:
    made = Exl3Config.from_config({"quant_method": "exl3", "bits": 3.7, **declared})
    made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    if folder:
        made.maybe_update_config(str(folder), hf_config=SimpleNamespace(model_type="qwen3_moe"))
    return made


def test_bits_are_read_from_the_files(folder: Path) -> None:
    made = config(folder)
    assert [
        made.routed_bits(f"model.layers.1.mlp.experts{end}", part) for end, part in (("", "gate_up_proj"), (".routed_experts", "down_proj"))
    ] == [3, 5]
    with pytest.raises(UnknownPack, match=r"layers\.7\.mlp\.experts\.down_proj: its experts are stored with no bits per weight"):
        made.routed_bits("model.layers.7.mlp.experts", "down_proj")


def test_without_a_folder_the_declaration_must_do() -> None:
    assert config(None, bits=4).routed_bits("model.layers.1.mlp.experts", "down_proj") == 4
    with pytest.raises(UnknownPack, match=r"fractional K \(3\.7 bits per weight\)"):
        config(None).routed_bits("model.layers.1.mlp.experts", "down_proj")
    with pytest.raises(UnknownPack, match="neither the configuration nor a local folder"):
        config(None, bits=None).routed_bits("model.layers.1.mlp.experts", "down_proj")
    with pytest.raises(UnknownPack, match="give vLLM the folder"):
        config(None).linear_parts("model.layers.1.self_attn.qkv_proj")


def test_parts_of_a_joined_layer(folder: Path) -> None:
    made = config(folder)
    parts = made.linear_parts("model.layers.1.self_attn.qkv_proj")
    assert [(part.bits, part.shape, part.codebook) for part in parts] == [
        (6, (128, 256), "mul1"),
        (4, (128, 128), "mcg"),
        (4, (128, 128), "mcg"),
    ]
    assert made.linear_parts("model.layers.1.self_attn.o_proj") == []
    with pytest.raises(UnknownPack, match=r"only some of layers\.2\.mlp\.gate_proj, layers\.2\.mlp\.up_proj are in EXL3"):
        made.linear_parts("model.layers.2.mlp.gate_up_proj")


def test_a_contradiction_stops_the_start(folder: Path) -> None:
    with pytest.raises(UnknownPack, match="routed experts only, but 4 other modules"):
        config(folder, scope="routed_experts_only")


def test_composition() -> None:
    made = config(
        None, bits=4, scope="routed_experts_only", non_routed_quantization={"quant_method": "fp8", "activation_scheme": "dynamic"}
    )
    assert made.non_routed is not None
    assert made.non_routed.get_name() == "fp8"
    asked: list[tuple[object, str]] = []
    made.non_routed.get_quant_method = lambda layer, prefix: asked.append((layer, prefix))
    other = torch.nn.Linear(1, 1)
    made.get_quant_method(other, "model.layers.0.self_attn.o_proj")
    assert asked == [(other, "model.layers.0.self_attn.o_proj")]
    assert made.non_routed.packed_modules_mapping == made.packed_modules_mapping


@pytest.mark.parametrize("method", ["exl3", None, "no-such-method"])
def test_wrong_composition(method: str | None) -> None:
    with pytest.raises(UnknownPack, match="non_routed_quantization"):
        config(None, non_routed_quantization={"quant_method": method, "x": 1})
