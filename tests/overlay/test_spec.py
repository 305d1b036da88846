"""What a pack declares, and which declarations are refused."""

import pytest
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.spec import Spec, layer_number, short_name


def test_the_public_pack() -> None:
    spec = Spec.parse({"quant_method": "exl3", "bits": 4, "codebook": "mcg", "scope": "glm53_routed_experts_only", "version": "1"})
    assert spec.scope == {"routed"}
    assert spec.routed_bits("model.layers.5.mlp.experts", "down_proj") == 4


def test_bits_per_layer_and_projection() -> None:
    spec = Spec.parse(
        {"bits": 4, "layer_bits": {"3": 3, "model.layers.4": {"gate_up_proj": 2, "down_proj": 5}, "layers.6": {"down_proj": 6}}}
    )
    asked = [(layer, part) for layer in (2, 3, 4, 6) for part in ("gate_up_proj", "down_proj")]
    assert [spec.routed_bits(f"language_model.model.layers.{layer}.mlp.experts", part) for layer, part in asked] == [4, 4, 3, 3, 2, 5, 4, 6]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"scope": "dense_exl3"}, "scope 'dense_exl3' of this EXL3 pack is not known"),
        ({"codebook": "lloyd"}, "codebook 'lloyd' of this EXL3 pack is not known"),
        ({"rotation": "none"}, "keys that this plugin does not know: rotation"),
        ({"layer_bits": {"all": 3}}, "layer_bits key 'all' names no layer"),
        ({"layer_bits": {"3": {"up": 3}}}, "layer_bits of layer 3 names up"),
    ],
)
def test_unknown_is_refused_by_name(config: dict[str, object], said: str) -> None:
    with pytest.raises(UnknownPack, match=said):
        Spec.parse({"quant_method": "exl3", **config})


def test_names() -> None:
    assert [layer_number(name) for name in ("7", "layers.7", "model.layers.7.mlp.experts", "visual.blocks.7", "model")] == [
        7,
        7,
        7,
        None,
        None,
    ]
    assert short_name("language_model.model.layers.0.mlp") == short_name("model.language_model.layers.0.mlp") == "layers.0.mlp"
    assert short_name("model.visual.blocks.0.attn.qkv") == "visual.blocks.0.attn.qkv"
