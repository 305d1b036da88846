"""Changes to vLLM 0.32 that GLM-5.3-Flash on GB10 still needs, each small, with its own switch and its own guard.

A patch replaces one function, and only if that function's source is the one it was written against; else it refuses, naming the
switch that leaves it out. Applying twice is harmless. `register` applies them in every process, so on every rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_glm_exl3.patches import (
    ablation,
    cache_reset,
    default_tokens,
    drafter_hit,
    graph_profile,
    indexer_logits,
    no_store,
    pdl,
    spin,
    stops,
    tool_choice,
)

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
    Patch("indexer_logits", indexer_logits.SWITCH, indexer_logits.wanted, indexer_logits.apply),
    Patch("tool_choice", tool_choice.SWITCH, tool_choice.wanted, tool_choice.apply),
    Patch("default_tokens", default_tokens.SWITCH, default_tokens.wanted, default_tokens.apply),
    Patch("drafter_hit", drafter_hit.SWITCH, drafter_hit.wanted, drafter_hit.apply),
    Patch("cache_reset", cache_reset.SWITCH, cache_reset.wanted, cache_reset.apply),
)


def apply_all(environment: Environment) -> list[str]:
    """Apply every wanted patch; returns their names. Raises guard.Mismatch at the first that does not fit."""
    applied = [patch for patch in PATCHES if patch.wanted(environment)]
    for patch in applied:
        patch.apply(environment)
    return [patch.name for patch in applied]
