"""The JSON Schemas of all documents, as committed in bench/schema/ for who reads them with other tools."""

from __future__ import annotations

import json
from pathlib import Path

from bench.kinds.registry import call

FOLDER = Path(__file__).resolve().parents[1] / "schema"
MODELS = {
    "receipt-v1": "bench.receipt:Receipt",
    "comparison-v1": "bench.compare.model:Sealed",
    "plan-v1": "bench.campaign.plan:Plan",
    "kld-v1": "bench.kld.receipt:Receipt",
    "ablation-v1": "ablit.receipt:Receipt",
    "foreign-v1": "bench.foreign.model:Foreign",
}


def texts() -> dict[Path, str]:
    """Each schema file and what it holds, made from the document's pydantic model."""
    made = {name: call(f"{model}.model_json_schema")() for name, model in MODELS.items()}
    return {FOLDER / f"{name}.json": json.dumps(plain, indent=2, sort_keys=True) + "\n" for name, plain in made.items()}
