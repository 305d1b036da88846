"""Which edits a sweep measures: ranges of layers by alphas, the unedited twin, and random directions as controls. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ablit.spec import EditSpec, Kernel, Target

SEEDS = (0, 1, 2)


class Named(Protocol):
    """A direction, in process or served: `id` is what an EditSpec calls it."""

    @property
    def id(self) -> str: ...


D = TypeVar("D", bound=Named)


@dataclass(frozen=True)
class Grid:
    """Every range at every alpha, the unedited twin once, and random directions of equal length at the widest range and each alpha of
    `control_alphas`. `kernel`: how alpha falls off by layer, the same for the controls."""

    ranges: tuple[tuple[int, ...], ...]
    alphas: tuple[float, ...]
    control_alphas: tuple[float, ...]
    targets: tuple[Target, ...] = ("o_proj",)
    seeds: tuple[int, ...] = SEEDS
    kernel: Kernel | None = None

    def points(self, real: D, random_like: Callable[[D, int], D]) -> list[tuple[EditSpec, D]]:
        """The twin first, then controls, then the grid: a sweep that is cut off has its controls."""
        widest = max(self.ranges, key=len)
        found = [(self._spec(real, widest, 0.0), real)]
        for alpha, seed in itertools.product(self.control_alphas, self.seeds):
            control = random_like(real, seed)
            found.append((self._spec(control, widest, alpha), control))
        for chosen, alpha in itertools.product(self.ranges, self.alphas):
            if alpha:
                found.append((self._spec(real, chosen, alpha), real))
        return found

    def _spec(self, direction: Named, layers: tuple[int, ...], alpha: float) -> EditSpec:
        """The twin has no kernel: it is the same edit, none, with any."""
        return EditSpec(direction=direction.id, layers=layers, alpha=alpha, kernel=self.kernel if alpha else None, targets=self.targets)
