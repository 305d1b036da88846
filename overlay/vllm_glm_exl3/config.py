"""The quantization config that vLLM makes from a checkpoint's declaration, and which method each layer gets."""

from pathlib import Path
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

from vllm_glm_exl3 import checkpoint
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.layout import check_bits
from vllm_glm_exl3.linear import Exl3LinearMethod
from vllm_glm_exl3.moe import Exl3MoEMethod
from vllm_glm_exl3.spec import LINEAR, ROUTED, Spec, short_name

logger = init_logger(f"vllm.{__name__}")  # vLLM configures the loggers below its own name only


class Exl3Config(QuantizationConfig):
    """One per model. `stored` is None until vLLM has said where the checkpoint is, and stays so if that is no local folder."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.stored: checkpoint.Stored | None = None
        self.non_routed = _compose(spec)

    @classmethod
    def get_name(cls) -> str:
        return "exl3"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        return ["quantization_config.json"]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Exl3Config":
        return cls(Spec.parse(config))

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Read the checkpoint's headers and refuse what does not fit. Raises UnknownPack."""
        if self.non_routed is not None:
            self.non_routed.maybe_update_config(model_name, hf_config=hf_config, revision=revision)
        if not Path(model_name).is_dir():
            logger.warning("%s is no local folder: EXL3 tensors are checked one by one as they are loaded", model_name)
            return
        self.stored = checkpoint.read(Path(model_name))
        checkpoint.check(self.spec, self.stored, getattr(hf_config, "model_type", ""))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        if self.non_routed is not None:
            self.non_routed.apply_vllm_mapper(hf_to_vllm_mapper)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, RoutedExperts) and ROUTED in self.spec.scope:
            return Exl3MoEMethod(self, layer.moe_config, prefix)
        if isinstance(layer, LinearBase) and (parts := self.linear_parts(prefix)):
            return Exl3LinearMethod(parts, prefix)
        if self.non_routed is not None:
            self.non_routed.packed_modules_mapping = self.packed_modules_mapping
            return self.non_routed.get_quant_method(layer, prefix)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def linear_parts(self, prefix: str) -> list[checkpoint.Module]:
        """The EXL3 modules that the linear layer at `prefix` is made of (q, k, v; gate, up; itself); [] if it is not in EXL3."""
        if LINEAR not in self.spec.scope:
            return []
        if self.stored is None:
            raise UnknownPack(f"{prefix}: which linear layers are in EXL3 can only be read from a local folder; give vLLM the folder")
        parent, _, own = short_name(prefix).rpartition(".")
        names = [f"{parent}.{part}".lstrip(".") for part in self.packed_modules_mapping.get(own, [own])]
        found = [self.stored.modules[name] for name in names if name in self.stored.modules]
        if found and len(found) != len(names):
            raise UnknownPack(
                f"{prefix}: only some of {', '.join(names)} are in EXL3; vLLM joins them into one layer, so all or none must be"
            )
        return found

    def routed_bits(self, prefix: str, projection: str) -> int:
        """K of "gate_up_proj" or "down_proj" of the experts at `prefix`: declared, else as stored. Raises UnknownPack."""
        declared = self.spec.routed_bits(prefix, projection)
        if self.stored is not None:
            declared = self._stored_bits(short_name(prefix).removesuffix(".routed_experts"), projection)
        if declared is None:
            raise UnknownPack(f"{prefix}.{projection}: neither the configuration nor a local folder says its bits per weight")
        return check_bits(declared, f"{prefix}.{projection}")

    def _stored_bits(self, prefix: str, projection: str) -> float:
        found = self.stored.routed_bits.get((prefix, projection), set()) if self.stored is not None else set()
        if len(found) != 1:
            raise UnknownPack(
                f"{prefix}.{projection}: its experts are stored with {sorted(found) or 'no'} bits per weight; one K is needed"
            )
        return next(iter(found))


def _compose(spec: Spec) -> QuantizationConfig | None:
    """The method of everything that is not EXL3, if the pack names one."""
    if not spec.non_routed:
        return None
    method = spec.non_routed.get("quant_method")
    if not method or method == "exl3":
        raise UnknownPack(f"non_routed_quantization needs a quant_method other than exl3, and has {method!r}")
    try:
        return get_quantization_config(method).from_config(dict(spec.non_routed))
    except ValueError as wrong:
        raise UnknownPack(f"non_routed_quantization: vLLM refuses {method!r}: {wrong}") from wrong
