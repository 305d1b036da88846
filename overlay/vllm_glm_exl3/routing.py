"""From top-k expert ids to tables sorted by expert. No value is read back to the host, so all of this can be captured."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tables:
    """Assignments (token, expert) in order of expert, those of other ranks' experts last.

    `count` int64 [E+1] (the last bin: not ours), `token` int64 [A], `weight` [A], `expert` int64 [A] in the
    original order (E: not ours), `order` int64 [A]: which original assignment stands at each place; A = tokens * top-k.
    """

    count: Tensor
    token: Tensor
    weight: Tensor
    expert: Tensor
    order: Tensor


def local_ids(ids: Tensor, expert_map: Tensor | None, count: int) -> Tensor:
    """int64 [A]: this rank's numbers of the experts, `count` for those it does not hold (and for -1, padding)."""
    flat = ids.flatten().long()
    if expert_map is not None:
        flat = torch.where(flat >= 0, expert_map.long()[flat.clamp(min=0)], flat)
    return torch.where(flat >= 0, flat, count)


def tables(ids: Tensor, weights: Tensor, expert_map: Tensor | None, count: int) -> Tables:
    """ids int [T, k], weights [T, k] -> tables for `count` local experts."""
    expert = local_ids(ids, expert_map, count)
    order = expert.argsort(stable=True)
    bins = torch.zeros(count + 1, dtype=torch.long, device=ids.device)
    bins.scatter_add_(0, expert, torch.ones_like(expert))
    return Tables(bins, order // ids.shape[1], weights.flatten()[order], expert, order)
