"""Loaders for stacked expert parameters: each stored tensor goes straight into its place, sliced for this rank."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm_glm_exl3 import codec
from vllm_glm_exl3.errors import UnknownPack
from vllm_glm_exl3.layout import Slice, bits_of, put, take

SHARDS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
KINDS = ("trellis", "suh", "svh")
MARKERS = {"mcg": codec.MCG_FACTOR, "mul1": codec.MUL1_FACTOR}


@dataclass
class ExpertLoader:
    """Loads one layer's experts. `local` maps a global expert number to this rank's, or -1; `rank`, `size`: tensor parallel."""

    prefix: str
    experts: int
    local: Callable[[int], int]
    rank: int
    size: int
    seen: set[tuple[int, str, str]] = field(default_factory=set)

    def __call__(
        self, param: Tensor, loaded_weight: Tensor, weight_name: str, shard_id: str, expert_id: int, return_success: bool = False
    ) -> bool | None:
        """vLLM's protocol: True if this rank holds the expert. Raises UnknownPack or BadSlice, naming the tensor."""
        kind = weight_name.rpartition("_")[2]
        name = f"{self.prefix}.{expert_id}.{SHARDS[shard_id]}.{kind}"
        expert = self.local(expert_id)
        if expert >= 0:
            self._place(param.data, loaded_weight, expert, (shard_id, kind, name))
        return expert >= 0 if return_success else None

    def _place(self, data: Tensor, stored: Tensor, expert: int, what: tuple[str, str, str]) -> None:
        shard, kind, name = what
        target = data[expert] if shard == "w2" else data[expert, 0 if shard == "w1" else 1]
        if kind in MARKERS:
            target.copy_(marker(stored, kind, name))
        else:
            if kind == "trellis":
                self._check_width(stored, target, name)
            part = Slice("in" if shard == "w2" else "out", self.rank, self.size)
            put(target, take(stored, kind, part, name), name)
        self.seen.add((expert, shard, kind))

    @staticmethod
    def _check_width(stored: Tensor, target: Tensor, name: str) -> None:
        bits, declared = bits_of(stored, name), target.shape[-1] // 16
        if bits != declared:
            raise UnknownPack(f"{name}: stored with {bits} bits per weight, while the configuration says {declared} for this layer")

    def check_complete(self) -> None:
        """Raise UnknownPack if a tensor of a local expert never came: its zeros would be served without a word."""
        wanted = {(expert, shard, kind) for expert in range(self.experts) for shard in SHARDS for kind in KINDS}
        if missing := sorted(wanted - self.seen):
            expert, shard, kind = missing[0]
            raise UnknownPack(
                f"{self.prefix}: {len(missing)} of {len(wanted)} tensors were not in the checkpoint, "
                f"first {SHARDS[shard]}.{kind} of this rank's expert {expert}"
            )

    def codebook(self, declared: str | None) -> int:
        """The one codebook of all experts, by their markers. Raises UnknownPack if they differ or contradict `declared`."""
        found = {self._marked(expert, shard) for expert in range(self.experts) for shard in SHARDS}
        if len(found) != 1:
            raise UnknownPack(f"{self.prefix}: experts in different codebooks ({', '.join(sorted(found))}); one per layer is needed")
        name = found.pop()
        if declared is not None and name != declared:
            raise UnknownPack(f"{self.prefix}: its tensors are in codebook {name}, while the configuration says {declared}")
        return codec.CODEBOOKS[name]

    def _marked(self, expert: int, shard: str) -> str:
        found = [kind for kind in MARKERS if (expert, shard, kind) in self.seen]
        return "+".join(found) or "3inst"


def marker(stored: Tensor, kind: str, name: str) -> Tensor:
    """A codebook marker as int32 scalar. Raises UnknownPack unless it holds the factor that the kernels have built in."""
    value = int(stored.reshape(())) & codec.MASK32
    if value != MARKERS[kind]:
        raise UnknownPack(f"{name}: holds {value:#x}, and only {MARKERS[kind]:#x} is known")
    return stored.reshape(()).to(torch.int32)


def is_dummy() -> bool:
    """vLLM was told to make up the weights (--load-format dummy), so none will come."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return config is not None and str(config.load_config.load_format) == "dummy"
