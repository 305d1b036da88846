"""The variables of an edit at load, the same on every rank. Names and defaults are the public recipe's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_glm_exl3.ablation.transplant import MANIFEST
from vllm_glm_exl3.errors import BadAblation

SWITCH = "ABLIT"
METHODS = ("auto", "transplant", "proj")
NAMED = {"dealign": "refusal_direction_glm53_dealign_late.pt", "bf_oproj": "refusal_direction_glm53_bf_oproj.pt"}


@dataclass(frozen=True)
class Wanted:
    """`method`: transplant or proj; `layers` as in formula.layers; `direction`: file, for proj; `donors`: folder, for transplant."""

    method: str
    layers: str
    alpha: float
    direction: Path
    donors: Path
    include_mtp: bool


def on(environment: Mapping[str, str]) -> bool:
    """ABLIT is 1. Raises BadAblation unless it is 0, 1 or empty."""
    return _flag(environment, SWITCH, "0")


def read(environment: Mapping[str, str]) -> Wanted:
    """ABLIT_METHOD (auto, transplant, proj), ABLIT_LAYERS (15-45), ABLIT_ALPHA (3.0), ABLIT_DIRECTION (dealign; bf_oproj; a path with
    a slash), ABLIT_INCLUDE_MTP (1), ABLIT_DIR (/opt/glm53/ablit). An empty value counts as unset. Raises BadAblation.

    auto is transplant where ABLIT_DIR/transplant holds a manifest and a donor file, else proj.
    """
    folder = Path(environment.get("ABLIT_DIR") or "/opt/glm53/ablit")
    donors = folder / "transplant"
    method = environment.get("ABLIT_METHOD") or "auto"
    if method not in METHODS:
        raise BadAblation(f"ABLIT_METHOD={method!r}: must be one of {', '.join(METHODS)}")
    if method == "auto":
        method = "transplant" if (donors / MANIFEST).exists() and any(donors.glob("L*.bin")) else "proj"
    layers, alpha = environment.get("ABLIT_LAYERS") or "15-45", _alpha(environment.get("ABLIT_ALPHA") or "3.0")
    direction = _direction(environment.get("ABLIT_DIRECTION") or "dealign", folder)
    return Wanted(method, layers, alpha, direction, donors, _flag(environment, "ABLIT_INCLUDE_MTP", "1"))


def _flag(environment: Mapping[str, str], name: str, default: str) -> bool:
    value = environment.get(name) or default
    if value not in ("0", "1"):
        raise BadAblation(f"{name}={value!r}: must be 0 or 1")
    return value == "1"


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0):
        raise BadAblation(f"ABLIT_ALPHA={text!r}: must be a number above 0")
    return alpha


def _direction(text: str, folder: Path) -> Path:
    if "/" in text:
        return Path(text)
    if text not in NAMED:
        raise BadAblation(f"ABLIT_DIRECTION={text!r}: must be {' or '.join(NAMED)}, or a path with a slash")
    return folder / NAMED[text]
