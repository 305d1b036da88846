"""Linear layers in EXL3, as vLLM's linear method. A joined layer (q, k, v; gate, up) is several EXL3 weights side by side."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import ColumnParallelLinear, LinearMethodBase, QKVParallelLinear, RowParallelLinear

from vllm_glm_exl3 import codec, ext, ops
from vllm_glm_exl3.checkpoint import Module
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.layout import Slice, check_bits, part_size, put, take
from vllm_glm_exl3.loading import KINDS, MARKERS, is_dummy, marker

QKV = {"q": 0, "k": 1, "v": 2}


class Exl3LinearMethod(LinearMethodBase):
    """`parts`: the stored weights that the layer joins, in its order. Each keeps its own K, codebook, suh and svh."""

    def __init__(self, parts: Sequence[Module], prefix: str) -> None:
        self.prefix = prefix
        self.bits = [check_bits(part.bits, prefix) for part in parts]
        self.codebooks = [codec.CODEBOOKS[part.codebook] for part in parts]

    def create_weights(
        self, layer: Any, input_size_per_partition: int, output_partition_sizes: list[int], input_size: int, output_size: int,
        params_dtype: torch.dtype, **_: Any,
    ) -> None:  # fmt: skip
        """`trellis` int16 flat, `suh` fp16 [parts, in], `svh` fp16 flat, markers int32 [parts]. Raises BadSlice, UnknownPack."""
        outs = output_partition_sizes
        if len(outs) != len(self.bits):
            raise UnknownPack(f"{self.prefix}: {len(self.bits)} EXL3 weights are stored for a layer of {len(outs)} parts")
        for what, size in (("in", input_size_per_partition), *(("out", out) for out in outs)):
            part_size(size, 1, f"{self.prefix} ({what} size of this rank)")
        layer.exl3_outs, layer.exl3_seen = list(outs), set()
        packed = sum(input_size_per_partition // 16 * (out // 16) * 16 * k for out, k in zip(outs, self.bits, strict=True))
        self._register(layer, "trellis", torch.zeros(packed, dtype=torch.int16))
        self._register(layer, "suh", torch.zeros(len(outs), input_size_per_partition, dtype=torch.float16))
        self._register(layer, "svh", torch.zeros(sum(outs), dtype=torch.float16))
        for kind in MARKERS:
            self._register(layer, kind, torch.zeros(len(outs), dtype=torch.int32))

    def _register(self, layer: Any, kind: str, data: Tensor) -> None:
        parameter = torch.nn.Parameter(data, requires_grad=False)
        layer.register_parameter(kind, parameter)

        def load(param: Tensor, loaded_weight: Tensor, shard_id: "str | int | None" = None) -> None:
            self._load(layer, kind, loaded_weight, _part(shard_id))

        parameter.weight_loader = load

    def _load(self, layer: Any, kind: str, stored: Tensor, part: int) -> None:
        """Put one stored tensor into its place. Raises UnknownPack or BadSlice, naming it."""
        name = f"{self.prefix}[{part}].{kind}"
        if kind in MARKERS:
            if codec.CODEBOOKS[kind] != self.codebooks[part]:
                raise UnknownPack(f"{name}: this tensor's codebook is {kind}, and the checkpoint's headers said otherwise")
            getattr(layer, kind).data[part] = marker(stored, kind, name)
        else:
            put(self._place(layer, kind, part), take(stored, kind, _slice(layer, part), name), name)
        layer.exl3_seen.add((part, kind))

    def _place(self, layer: Any, kind: str, part: int) -> Tensor:
        if kind == "suh":
            return layer.suh.data[part]
        pieces = ops.split(layer.trellis.data, layer.svh.data, layer.suh.shape[1], layer.exl3_outs, self.bits)
        return pieces[part][0 if kind == "trellis" else 1]

    def process_weights_after_loading(self, layer: Any) -> None:
        """Raises UnknownPack if a tensor never came, NoPath if nothing can run this layer here."""
        wanted = {(part, kind) for part in range(len(self.bits)) for kind in KINDS}
        if (missing := sorted(wanted - layer.exl3_seen)) and not is_dummy():
            raise UnknownPack(f"{self.prefix}: {missing[0][1]} of its part {missing[0][0]} was not in the checkpoint")
        if layer.trellis.is_cuda:
            ext.load()

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.ops.vllm_glm_exl3.linear(x, layer.trellis, layer.suh, layer.svh, layer.exl3_outs, self.bits, self.codebooks)
        return out if bias is None else out + bias


def _part(shard_id: "str | int | None") -> int:
    return QKV.get(shard_id, 0) if isinstance(shard_id, str) else int(shard_id or 0)


def _slice(layer: Any, part: int) -> Slice:
    """The part of a stored tensor that this rank takes: rows for row-parallel layers, else columns; k and v may be repeated."""
    rank, size = int(layer.tp_rank), int(layer.tp_size)
    if isinstance(layer, RowParallelLinear):
        return Slice("in", rank, size)
    if not isinstance(layer, ColumnParallelLinear):
        return Slice()
    copies = int(layer.num_kv_head_replicas) if isinstance(layer, QKVParallelLinear) and part > 0 else 1
    return Slice("out", rank // copies, size // copies)
