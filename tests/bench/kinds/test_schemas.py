import json
from pathlib import Path

import jsonschema
import pytest

from bench.kinds import schemas
from bench.kinds.registry import KINDS

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_the_committed_schemas_are_those_of_the_models() -> None:
    texts = schemas.texts()
    assert {path.name: path.read_text() for path in schemas.FOLDER.glob("*.json")} == {path.name: text for path, text in texts.items()}, (
        "run: invoke receipt.schema"
    )


def test_every_kind_of_ours_has_a_schema() -> None:
    named = {kind.schema.removeprefix("spark-lab/").replace("/", "-") for kind in KINDS}
    assert named | {"plan-v1"} == set(schemas.MODELS)


@pytest.mark.parametrize(("folder", "name"), [("kld", "kld-v1"), ("ablation/receipts", "ablation-v1"), ("comparisons", "comparison-v1")])
def test_committed_receipts_are_accepted_and_a_changed_type_is_not(folder: str, name: str) -> None:
    schema = json.loads((schemas.FOLDER / f"{name}.json").read_text())
    paths = sorted((RESULTS / folder).glob("*.json"))
    assert paths
    for path in paths:
        plain = json.loads(path.read_text())
        jsonschema.validate(plain, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, "seal": 1}, schema)
