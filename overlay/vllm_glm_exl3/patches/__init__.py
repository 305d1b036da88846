"""Changes to vLLM 0.32 that GLM-5.3-Flash on GB10 still needs, each small, with its own switch and its own guard.

A patch replaces one function, and only if that function's source is the one it was written against; else it refuses, naming the
switch that leaves it out. Applying twice is harmless. `register` applies them in every process, so on every rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_glm_exl3.patches import ablation, graph_profile, no_store, pdl, spin, stops

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Patch:
    """`wanted` says from the environment whether to apply; `apply` does, and raises guard.Mismatch if vLLM is not as expected."""

    name: str
    switch: str
    wanted: Callable[[Environment], bool]
    apply: Callable[[Environment], None]


PATCHES = (
    Patch("pdl", pdl.SWITCH, pdl.wanted, pdl.apply),
    Patch("stops", stops.SWITCH, stops.wanted, stops.apply),
    Patch("no_store", no_store.SWITCH, no_store.wanted, no_store.apply),
    Patch("spin", spin.SWITCH, spin.wanted, spin.apply),
    Patch("ablation", ablation.SWITCH, ablation.wanted, ablation.apply),
    Patch("graph_profile", graph_profile.SWITCH, graph_profile.wanted, graph_profile.apply),
)


def apply_all(environment: Environment) -> list[str]:
    """Apply every wanted patch; returns their names. Raises guard.Mismatch at the first that does not fit."""
    applied = [patch for patch in PATCHES if patch.wanted(environment)]
    for patch in applied:
        patch.apply(environment)
    return [patch.name for patch in applied]
