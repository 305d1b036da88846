"""What every rank reports of an edit at load (ABLIT=1), and whether all of them made the same one. Pure.

The engine's plugin logs one line `ablation summary: {...}` for each part of the model that it edited, "model" or "mtp". A rank that
has another alpha, direction or layer range than its peers would serve a model that nobody asked for, and no error would show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.boot.look import Line

MARK = "ablation summary: "
_SAME = ("method", "alpha", "layers", "source")
_NEAR = 2e-2  # of the signed ratio, in parts of alpha: what rounding to bfloat16 leaves


@dataclass(frozen=True)
class Summary:
    """What one rank did to one part. `source`: sha256 of the direction file, or of the donors' manifest. Pairs are [least, most]."""

    rank: int
    world: int
    part: str
    method: str
    alpha: float | None
    layers: str
    source: str
    ratio: tuple[float, float] | None
    rel_l2: tuple[float, float]

    def told(self) -> str:
        strength = "" if self.alpha is None else f" alpha {self.alpha:g}"
        return f"{self.part} layers {self.layers}, {self.method}{strength}, source {self.source[:16]}"


def read(lines: Iterable[Line]) -> list[Summary]:
    """The summaries among the lines of a rank's log; a line that is cut off or of another shape is none."""
    found = []
    for line in lines:
        _, mark, text = line.text.partition(MARK)
        try:
            plain = json.loads(text) if mark else None
            if plain:
                found.append(Summary(**{**plain, "ratio": plain["ratio"] and tuple(plain["ratio"]), "rel_l2": tuple(plain["rel_l2"])}))
        except (ValueError, TypeError, LookupError):
            continue
    return found


def judge(numbers: Mapping[str, int], found: Mapping[str, Sequence[Summary]]) -> str | None:
    """What is wrong with the summaries of the ranks (role -> rank number), or None. The last one counts of each part."""
    last = {role: {each.part: each for each in found.get(role, ())} for role in numbers}
    for role, number in numbers.items():
        own = last[role].get("model")
        if own is None:
            return f"{role}: rank {number} reported no edit, and ABLIT=1 asks for one"
        wrong = next((each for each in last[role].values() if (each.rank, each.world) != (number, len(numbers))), None)
        if wrong:
            return f"{role}: the edit was made by rank {wrong.rank} of {wrong.world}, and rank {number} of {len(numbers)} runs there"
        if off := next((each for each in last[role].values() if not _as_asked(each)), None):
            return f"{role}: {off.told()}: signed ratios {off.ratio}, and 1 - alpha is {1 - (off.alpha or 0):g}"
    return _differs(last)


def _as_asked(summary: Summary) -> bool:
    """The component along the direction became 1 - alpha times what it was, in every layer; a transplant has no such figure."""
    if summary.alpha is None or summary.ratio is None:
        return summary.method == "transplant"
    return all(abs(ratio - (1 - summary.alpha)) <= _NEAR * max(1.0, abs(summary.alpha)) for ratio in summary.ratio)


def _differs(last: Mapping[str, Mapping[str, Summary]]) -> str | None:
    head, *others = last
    for role in others:
        if set(last[role]) != set(last[head]):
            return f"{role} edited {_named(last[role])}, and {head} {_named(last[head])}"
        for part, own in last[role].items():
            first = last[head][part]
            names = [name for name in _SAME if getattr(own, name) != getattr(first, name)]
            if names:
                return f"the ranks made different edits ({', '.join(names)}): {head}: {first.told()}; {role}: {own.told()}"
    return None


def _named(parts: Iterable[str]) -> str:
    return " and ".join(sorted(parts))


def told(found: Sequence[Summary], ranks: int) -> list[str]:
    """What to say of edits that all ranks made alike; `found` of the head."""
    parts = {each.part: each for each in found}
    where = "" if ranks == 1 else f", the same on all {ranks} ranks"
    return [f"edited at load: {each.told()}{where}" + _ratio(each) for each in parts.values()]


def _ratio(summary: Summary) -> str:
    return "" if summary.ratio is None else f"; signed ratio {summary.ratio[0]:.4f} to {summary.ratio[1]:.4f}"


def noted(found: Sequence[Summary]) -> list[dict[str, Any]]:
    """For the record of a rank: the last summary of each part."""
    return [asdict(each) for each in {each.part: each for each in found}.values()]
