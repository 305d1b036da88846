"""What a checkpoint's `quantization_config` declares, checked. Imports neither torch nor vllm.

{"quant_method": "exl3", "bits": 4, "codebook": "mcg", "scope": "routed_experts_only",
 "layer_bits": {"3": 3, "4": {"gate_up_proj": 3, "down_proj": 4}}, "non_routed_quantization": {"quant_method": "fp8", ...}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_glm_exl3.errors import UnknownPack

ROUTED, LINEAR = "routed", "linear"
# scope -> what of the model is in EXL3. A pack without a scope is exllamav3's own, which quantizes linear layers too.
SCOPES = {
    "routed_experts_only": {ROUTED},
    "routed_experts": {ROUTED},
    "glm53_routed_experts_only": {ROUTED},
    "all": {ROUTED, LINEAR},
    "all_linear": {ROUTED, LINEAR},
    None: {ROUTED, LINEAR},
}
CODEBOOK_NAMES = ("mcg", "mul1", "3inst")
# carried by packs and without effect on how they are served
INFORMATION = {"version", "calibration", "out_scales", "head_bits", "tensor_storage", "ignore", "modules_to_not_convert"}


def layer_number(name: str) -> int | None:
    """The decoder layer that a module name or `layer_bits` key is about: "3", "layers.3", "model.layers.3.mlp" -> 3."""
    found = re.search(r"(?:^|\.)layers\.(\d+)(?:\.|$)", name) or re.fullmatch(r"(\d+)", name)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class Spec:
    """The declaration. `bits` and `codebook` are None where only the tensors say."""

    scope: frozenset[str]
    bits: float | None = None
    codebook: str | None = None
    layer_bits: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    non_routed: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> "Spec":
        """Raises UnknownPack for a scope, codebook or key that is not known: a pack must not be half understood."""
        known = {"quant_method", "bits", "codebook", "scope", "layer_bits", "non_routed_quantization", *INFORMATION}
        if unknown := sorted(set(config) - known):
            raise UnknownPack(f"quantization_config of kind exl3 has keys that this plugin does not know: {', '.join(unknown)}")
        return cls(
            scope=_scope(config.get("scope")),
            bits=config.get("bits"),
            codebook=_codebook(config.get("codebook")),
            layer_bits=_layer_bits(config.get("layer_bits") or {}),
            non_routed=config.get("non_routed_quantization"),
        )

    def routed_bits(self, prefix: str, projection: str) -> float | None:
        """Declared bits of `projection` ("gate_up_proj", "down_proj") of the experts at module `prefix`; None: undeclared."""
        number = layer_number(prefix)
        per_layer = self.layer_bits.get(number, {}) if number is not None else {}
        return per_layer.get(projection, self.bits)


def _scope(scope: str | None) -> frozenset[str]:
    if scope not in SCOPES:
        names = ", ".join(sorted(filter(None, SCOPES)))
        raise UnknownPack(f"scope {scope!r} of this EXL3 pack is not known; known: {names}")
    return frozenset(SCOPES[scope])


def _codebook(name: str | None) -> str | None:
    if name is not None and name not in CODEBOOK_NAMES:
        raise UnknownPack(f"codebook {name!r} of this EXL3 pack is not known; known: {', '.join(CODEBOOK_NAMES)}")
    return name


def _layer_bits(declared: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """{"3": 3} or {"layers.3": {"gate_up_proj": 3, "down_proj": 4}} -> by layer number and projection."""
    found: dict[int, dict[str, int]] = {}
    for key, bits in declared.items():
        number = layer_number(key)
        if number is None:
            raise UnknownPack(f"layer_bits key {key!r} names no layer; write {{'3': 4}} or {{'layers.3': 4}}")
        found[number] = dict(bits) if isinstance(bits, Mapping) else {"gate_up_proj": bits, "down_proj": bits}
        if unknown := set(found[number]) - {"gate_up_proj", "down_proj"}:
            raise UnknownPack(f"layer_bits of layer {number} names {', '.join(sorted(unknown))}; known: gate_up_proj, down_proj")
    return found


def short_name(module: str) -> str:
    """A module's name without what model classes put before it: "model.language_model.layers.0.x" -> "layers.0.x"."""
    return re.sub(r"^(?:(?:model|language_model)\.)+", "", module)
