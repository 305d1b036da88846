"""Write the JSON Schemas of plans and comparisons: `python -m bench.compare.schema` (a test keeps them equal to the models)."""

from pathlib import Path

from bench.campaign import plan
from bench.compare import model

FOLDER = Path(__file__).resolve().parents[1] / "schema"

if __name__ == "__main__":
    (FOLDER / "comparison-v1.json").write_text(model.schema_text())
    (FOLDER / "plan-v1.json").write_text(plan.schema_text())
