"""An ablation receipt whose every figure can be checked by eye."""

from __future__ import annotations

from typing import Any

from ablit.receipt import LayerEdit, Model, Panel, Payload, Receipt, Side, Window, seal, summarize
from ablit.spec import EditSpec

SHA = "a" * 64
MODEL = Model(name="tiny", sha256=SHA, layers=4, hidden=8, dtype="float32")


def edit(layer: int, alpha: float, **changed: Any) -> LayerEdit:
    plain = {"layer": layer, "target": "o_proj", "alpha": alpha, "ratio": 1 - alpha, "change": 0.1 * alpha}
    return LayerEdit(**{**plain, "before_sha256": SHA, "after_sha256": SHA if alpha == 0 else "b" * 64, **changed})


def side(edited: str = "0001", stock: str = "1111", **changed: Any) -> Side:
    plain: dict[str, Any] = {
        "file": "held.txt",
        "file_sha256": SHA,
        "classifier": "brief",
        "reply_tokens": 8,
        "stock": stock,
        "edited": edited,
        "stock_soundness": "s" * len(stock),
        "soundness": "r" + "s" * (len(edited) - 1),
        "first_kld": tuple(0.25 for _ in edited),
        "answers_sha256": SHA,
        "samples": ("Yes.",),
    }
    return Side(**{**plain, **changed})


def panel(*means: float, **changed: Any) -> Panel:
    """Windows of 10 positions with these mean KLDs; 9 of 10 agree; total variation 0.05 at each."""
    windows = tuple(
        Window(name=f"prose-{at}", positions=10, kld=10 * m, tv=0.5 if m else 0.0, agree=9, kld_max=3 * m) for at, m in enumerate(means)
    )
    plain: dict[str, Any] = {"form": "statistics", "texts": "tiny", "texts_sha256": SHA, "windows": windows}
    return Panel(**{**plain, "median": 0.01, "p99": 0.2, "p999": 0.3, **changed})


def payload(
    id: str = "0123456789ab", alpha: float = 2.0, facts: Panel | None = None, sides: tuple[Side, ...] | None = None, **changed: Any
) -> Payload:
    facts, sides = facts or panel(0.01, 0.02, 0.03), sides or (side(),)
    plain: dict[str, Any] = {
        "id": id,
        "created_utc": "2026-11-30T00:00:00+00:00",
        "tool": {"name": "spark-lab", "version": "0"},
        "model": MODEL,
        "direction": {"name": "brief-15"},
        "spec": EditSpec(direction=SHA, layers=(1, 2, 3), alpha=alpha),
        "control": None if alpha else "twin",
        "edits": tuple(edit(layer, alpha) for layer in (1, 2, 3)),
        "panel": facts,
        "behaviour": sides,
        "cpu_s": {"panel": 1.0},
        "summary": summarize(facts, sides),
    }
    return Payload(**{**plain, **changed})


def sample(**changed: Any) -> Receipt:
    return seal(payload(**changed))
