"""All experts in one launch, exllamav3_ext.exl3_moe: no host synchronisation, so it can be captured in a CUDA graph.

The kernel takes experts with up to `rows` assignments each; T tokens give an expert at most T, so up to `rows` tokens need
nothing else. It needs two buffers per group of multiprocessors; they are shared by all layers, which run one after the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_glm_exl3 import codec, ext
from vllm_glm_exl3.experts import Experts
from vllm_glm_exl3.routing import Tables

SILU = 0
M_TILE = 16  # rows of a tile; larger ones exist for mul1 only
CODEBOOKS = (codec.MCG, codec.MUL1)  # the kernel has no instance for 3INST


@dataclass(frozen=True)
class Workspace:
    """fp16 [groups, rows, H] twice and [groups, rows, I] twice."""

    state: tuple[Tensor, Tensor]
    inner: tuple[Tensor, Tensor]

    @property
    def rows(self) -> int:
        return int(self.state[0].shape[1])


_workspaces: dict[tuple[torch.device, int, int, int], Workspace] = {}


def workspace(device: torch.device, hidden: int, inner: int, rows: int) -> Workspace:
    """The buffers for one geometry on `device`; made at the first call, which must come before any graph is captured."""
    key = (device, hidden, inner, rows)
    if key not in _workspaces:
        groups = ext.load().exl3_moe_max_concurrency(device.index)
        shapes = [(groups, rows, width) for width in (hidden, hidden, inner, inner)]
        first, second, third, fourth = (torch.empty(shape, dtype=torch.float16, device=device) for shape in shapes)
        _workspaces[key] = Workspace((first, second), (third, fourth))
    return _workspaces[key]


def run(x: Tensor, tables: Tables, experts: Experts, out: Tensor, space: Workspace, exact: bool = False) -> None:
    """Add to `out` fp32 [T, H] what experts with 1 to space.rows assignments give. x fp16 [T, H], contiguous.

    `exact`: sum each token's experts in the order of its top-k list instead of as they finish, for equal bits in every run.
    """
    scratch, start = _slots(x, tables) if exact else (None, None)
    ext.load().exl3_moe(
        x, out, tables.count, tables.token, tables.weight.to(torch.float16),
        *space.state, *space.inner,
        SILU, float(experts.gate.bits), float(experts.up.bits), float(experts.down.bits),
        *experts.rows(), *(ext.flags(experts.codebook) * 3), experts.limit,
        -1,  # how many experts are active: unknown without reading it back
        scratch, start, 1, space.rows, M_TILE,
    )  # fmt: skip
    if scratch is not None and start is not None:
        _gather(out, tables, scratch, start, space.rows)


def _slots(x: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """fp32 [A, H] for each assignment's result, and int64 [E+1]: each expert's first assignment."""
    scratch = torch.empty(len(tables.token), x.shape[1], dtype=torch.float32, device=x.device)
    return scratch, tables.count.cumsum(0) - tables.count


def _gather(out: Tensor, tables: Tables, scratch: Tensor, start: Tensor, rows: int) -> None:
    own = len(tables.count) - 1
    place = torch.empty_like(tables.order).scatter_(0, tables.order, torch.arange(len(tables.order), device=out.device))
    held = ((tables.count > 0) & (tables.count <= rows)).long()  # the others' slots were not written
    ext.load().exl3_moe_gather(out, scratch, tables.expert, place, start[:own], start[:own], held[:own], tables.weight.to(torch.float16))
