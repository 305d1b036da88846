"""Routed experts in EXL3, as vLLM's fused-MoE method."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.config.vllm import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from vllm_glm_exl3 import codec, moe_coop, moe_fused, ops, paths, settings
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.experts import pointer_tables
from vllm_glm_exl3.layout import part_size
from vllm_glm_exl3.loading import ExpertLoader, is_dummy

if TYPE_CHECKING:
    from vllm_glm_exl3.config import Exl3Config

logger = init_logger(f"vllm.{__name__}")  # vLLM configures the loggers below its own name only


class Exl3MoEMethod(FusedMoEMethodBase):
    """Weights stay packed: `w13_*` [E, 2, ...] and `w2_*` [E, ...] of trellis, suh, svh and codebook markers."""

    def __init__(self, config: "Exl3Config", moe: FusedMoEConfig, prefix: str) -> None:
        super().__init__(moe)
        self.config, self.prefix = config, prefix
        self.settings = settings.read()
        self.limit = float(moe.swiglu_limit or 0.0)  # 0: none
        self.graphs = _captures_graphs()

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        return None

    def create_weights(
        self, layer: Any, num_experts: int, hidden_size: int, intermediate_size_per_partition: int, params_dtype: torch.dtype, **_: Any
    ) -> None:
        """Raises BadSlice if this rank's part is not whole 128-blocks, UnknownPack for a layer this method cannot run."""
        self._check(layer)
        parallel = self.moe.moe_parallel_config
        part_size(hidden_size, 1, f"{self.prefix} (hidden size)")
        part_size(intermediate_size_per_partition * parallel.tp_size, parallel.tp_size, f"{self.prefix} (intermediate size)")
        loader = ExpertLoader(self.prefix, num_experts, layer._map_global_expert_id_to_local_expert_id, parallel.tp_rank, parallel.tp_size)
        layer.exl3_loader = loader
        for name, shape, dtype in self._parameters(num_experts, hidden_size, intermediate_size_per_partition):
            parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
            layer.register_parameter(name, parameter)
            parameter.weight_loader = loader

    def _check(self, layer: Any) -> None:
        activation = str(getattr(layer.activation, "value", layer.activation))
        wrong = {
            f"activation {activation}": activation != "silu",
            "experts without a gate": not self.moe.is_act_and_mul,
            "biases": self.moe.has_bias,
            "router weights on the input": layer.apply_router_weight_on_input,
            "swiglu alpha or beta": self.moe.swiglu_alpha is not None or self.moe.swiglu_beta is not None,
            "data parallel experts": self.moe.moe_parallel_config.use_all2all_kernels,
        }
        if found := [what for what, yes in wrong.items() if yes]:
            raise UnknownPack(f"{self.prefix}: EXL3 experts with {', '.join(found)} are not supported")

    def _parameters(self, experts: int, hidden: int, inner: int) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        k13 = self.config.routed_bits(self.prefix, "gate_up_proj")
        k2 = self.config.routed_bits(self.prefix, "down_proj")
        sizes = {
            "w13": ((experts, 2), hidden, inner, k13),
            "w2": ((experts,), inner, hidden, k2),
        }
        rows = []
        for stem, (lead, wide, out, bits) in sizes.items():
            rows.append((f"{stem}_trellis", (*lead, wide // 16, out // 16, 16 * bits), torch.int16))
            rows += [(f"{stem}_suh", (*lead, wide), torch.float16), (f"{stem}_svh", (*lead, out), torch.float16)]
            rows += [(f"{stem}_{marker}", lead, torch.int32) for marker in ("mcg", "mul1")]
        return rows

    def process_weights_after_loading(self, layer: Any) -> None:
        """Check that everything came, choose the path, make its buffers. Raises UnknownPack or NoPath."""
        if is_dummy():
            layer.exl3_codebook = codec.CODEBOOKS[self.config.spec.codebook or "mcg"]
        else:
            layer.exl3_loader.check_complete()
            layer.exl3_codebook = layer.exl3_loader.codebook(self.config.spec.codebook)
        layer.exl3_path = paths.choose(self.settings.path, layer.exl3_codebook, self.limit, layer.w2_trellis.is_cuda, self.graphs)
        layer.exl3_tables = None
        if layer.exl3_path == "fused":
            layer.exl3_tables = pointer_tables(*ops.stacked(_stack(layer, "w13"), _stack(layer, "w2")))
            hidden, inner = layer.w2_svh.shape[-1], layer.w2_suh.shape[-1]
            moe_fused.workspace(layer.w2_trellis.device, hidden, inner, self.settings.rows)
            moe_coop.scratch(layer.w2_trellis.device, hidden, inner)
        logger.info_once("EXL3 experts run by the %s path", layer.exl3_path)

    def apply(
        self, layer: Any, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, shared_experts: Any = None, shared_experts_input: Any = None
    ) -> Tensor:
        """x [T, H] -> [T, H], this rank's share; vLLM sums over ranks and runs the shared experts."""
        return torch.ops.vllm_glm_exl3.moe(
            x, topk_ids, topk_weights, layer.expert_map, *_stack(layer, "w13"), *_stack(layer, "w2"), layer.exl3_tables,
            layer.exl3_codebook, self.limit, layer.exl3_path, self.settings.rows, self.settings.deterministic,
        )  # fmt: skip


def _captures_graphs() -> bool:
    """Of the engine whose model is being made; False outside of one."""
    config = get_current_vllm_config_or_none()
    return config is not None and config.compilation_config.cudagraph_mode not in (None, CUDAGraphMode.NONE)


def _stack(layer: Any, stem: str) -> tuple[Tensor, Tensor, Tensor]:
    return getattr(layer, f"{stem}_trellis"), getattr(layer, f"{stem}_suh"), getattr(layer, f"{stem}_svh")
