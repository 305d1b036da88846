"""Which edits a sweep measures: ranges of layers by alphas, the unedited twin, and random directions as controls. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ablit.spec import EditSpec, Kernel, Target
from ablit.spec import alphas as parsed
from bench.errors import BadRequest

SEEDS = (0, 1, 2)


def strengths(alphas: str, controls: str | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Alphas of the grid and of its controls, by default the largest. Raises BadRequest where nothing would be edited: the twin alone
    has alpha 0, and its name."""
    chosen = parsed(alphas)
    if not any(chosen):
        raise BadRequest(f"alpha is {alphas}: nothing would be edited\ntry: 1,2 (the unedited twin is always measured)")
    beside = parsed(controls) if controls else (max(chosen),)
    if not all(beside):
        raise BadRequest(f"--controls is {controls}: a control of alpha 0 would be the twin again\ntry: {max(chosen):g}")
    return chosen, beside


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
        for alpha, chosen in itertools.product(self.alphas, self.ranges):  # what points have in common is measured together
            if alpha:
                found.append((self._spec(real, chosen, alpha), real))
        return found

    def _spec(self, direction: Named, layers: tuple[int, ...], alpha: float) -> EditSpec:
        """The twin has no kernel: it is the same edit, none, with any."""
        return EditSpec(direction=direction.id, layers=layers, alpha=alpha, kernel=self.kernel if alpha else None, targets=self.targets)


def forks(specs: Sequence[EditSpec]) -> dict[EditSpec, tuple[int, ...]]:
    """For each edit, the layers at which another one that is the same below goes another way: up to there, they are one computation."""
    found: dict[EditSpec, set[int]] = {spec: set() for spec in specs}
    for one, other in itertools.combinations(found, 2):
        if one.model_copy(update={"layers": other.layers}) == other:
            common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one.layers, other.layers, strict=False)))
            if common:
                at = min(spec.layers[common] for spec in (one, other) if len(spec.layers) > common)
                found[one].add(at)
                found[other].add(at)
    return {spec: tuple(sorted(layers)) for spec, layers in found.items()}
