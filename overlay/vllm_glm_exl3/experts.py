"""The packed weights of one layer's experts on one rank, as every execution path takes them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Projections:
    """Stacked EXL3 weights [experts, ...]: trellis int16 [E, in/16, out/16, 16*K], suh fp16 [E, in], svh fp16 [E, out]."""

    trellis: Tensor
    suh: Tensor
    svh: Tensor

    @property
    def bits(self) -> int:
        return int(self.trellis.shape[-1]) // 16

    def pick(self, which: "Tensor | int") -> tuple[Tensor, Tensor, Tensor]:
        """The weights of one expert, or of several (an index tensor: copies)."""
        return self.trellis[which], self.suh[which], self.svh[which]


@dataclass(frozen=True)
class Experts:
    """gate and up [H -> I], down [I -> H]; `limit`: swiglu limit, 0 for none; `tables`: addresses, see pointer_tables."""

    gate: Projections
    up: Projections
    down: Projections
    codebook: int
    limit: float = 0.0
    tables: Tensor | None = None

    def rows(self) -> tuple[Tensor, ...]:
        """The nine pointer tables, int64 [experts] each."""
        if self.tables is None:
            raise ValueError("these experts have no pointer tables")
        return self.tables.unbind()

    @property
    def count(self) -> int:
        return int(self.gate.trellis.shape[0])

    @property
    def hidden(self) -> int:
        return int(self.gate.suh.shape[-1])

    @property
    def inner(self) -> int:
        return int(self.down.suh.shape[-1])


def pointer_tables(*projections: Projections) -> Tensor:
    """int64 [3 * projections, experts]: device addresses of trellis, suh, svh of each expert, for exllamav3_ext.

    Valid as long as the tensors stay where they are; computed from strides, so nothing is read back.
    """
    stacks = [stack for part in projections for stack in (part.trellis, part.suh, part.svh)]
    rows = [stack.data_ptr() + torch.arange(stack.shape[0]) * stack.stride(0) * stack.element_size() for stack in stacks]
    return torch.stack(rows).to(stacks[0].device)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(gate) * up; with a limit, gate is capped at it and up held within +-limit first (SiluAndMulWithClamp)."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up
