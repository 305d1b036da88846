"""What docs/serving.md says of limits and warnings, from the kits and the constraints themselves."""

from __future__ import annotations

import json
from pathlib import Path

from cluster import kits
from cluster.constraints import ADVICE
from cluster.settings import load


def limits() -> str:
    """A markdown table: what each kit's defaults let a request hold. Settings of this machine do not get in."""
    rows = [_limits(name) for name in kits.names()]
    head = [
        "| kit | context, tokens | requests at once | images and videos | tokens of an image, at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    names = "The kits' defaults: `MAX_MODEL_LEN`, `MAX_NUM_SEQS`, `LIMIT_MM`, `MM_IMAGE_TOKENS`. `invoke config` shows yours."
    return "\n".join([names, "", *head, *rows, ""])


def _limits(name: str) -> str:
    effective = load({"kit": name}, environ={}, path=Path("/nonexistent/.env"))
    s, sees = effective.settings, effective.kit.hardware == "gb10" and not effective.settings.language_model_only
    most = (
        ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in json.loads(s.limit_mm or "{}").items()) if sees else "-"
    )
    image = (f"{s.mm_image_tokens:,}" if s.mm_image_tokens else "the checkpoint's 8,000") if sees else "-"
    return f"| `{name}` | {s.max_model_len:,} | {s.max_num_seqs} | {most or 'not bounded'} | {image} |"


def warnings() -> str:
    """Everything that a launch says and does not refuse, one markdown line each."""
    return "".join(f"- {c.applies.words}: do not {c.rule}; {c.evidence}. Instead: {c.hint}. (`{c.id}`)\n" for c in ADVICE)
