"""What an edit at load is asked for by, and donors of whole weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_glm_exl3.ablation import edit, settings
from vllm_glm_exl3.errors import BadAblation

from tests.overlay.ablation_models import OUT, WIDE, applied, model, o_proj, weights


def test_defaults(tmp_path: Path) -> None:
    found = settings.read({"ABLIT_METHOD": "", "ABLIT_ALPHA": ""})
    assert (found.method, found.layers, found.alpha, found.include_mtp) == ("proj", "15-45", 3.0, True)
    assert str(found.direction) == "/opt/glm53/ablit/refusal_direction_glm53_dealign_late.pt"
    assert settings.read({"ABLIT_DIRECTION": "bf_oproj", "ABLIT_DIR": "/d"}).direction.name == "refusal_direction_glm53_bf_oproj.pt"
    assert [settings.on({"ABLIT": text}) for text in ("0", "1", "")] == [False, True, False]


def test_auto_takes_donors_that_are_there(tmp_path: Path) -> None:
    where = {"ABLIT_DIR": str(tmp_path)}
    (tmp_path / "transplant").mkdir()
    (tmp_path / "transplant/MANIFEST.json").touch()
    assert settings.read(where).method == "proj"
    (tmp_path / "transplant/L15.bin").touch()
    assert settings.read(where).method == "transplant"
    assert settings.read({**where, "ABLIT_METHOD": "proj"}).method == "proj"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ABLIT_METHOD", "svd"),
        ("ABLIT_ALPHA", "0"),
        ("ABLIT_ALPHA", "-1"),
        ("ABLIT_ALPHA", "nan"),
        ("ABLIT_ALPHA", "much"),
        ("ABLIT_DIRECTION", "other"),
        ("ABLIT_INCLUDE_MTP", "2"),
    ],
)
def test_values_that_are_refused(name: str, value: str) -> None:
    with pytest.raises(BadAblation, match=f"{name}='{value}'"):
        settings.read({name: value})


# --- donors ---


@pytest.fixture
def donors(tmp_path: Path) -> Path:
    folder = tmp_path / "transplant"
    folder.mkdir()
    entries = {}
    for layer, weight in enumerate(weights()):
        content = (weight * 2).view(torch.int16).numpy().tobytes()
        (folder / f"L{layer}.bin").write_bytes(content)
        entries[str(layer)] = {
            "nbytes": len(content),
            "dtype": "bfloat16",
            "shape": [OUT, WIDE],
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    (folder / "MANIFEST.json").write_text(json.dumps({"layers": entries}))
    return folder


def transplanted(donors: Path) -> settings.Wanted:
    return settings.read({"ABLIT_DIR": str(donors.parent), "ABLIT_METHOD": "transplant"})


def test_transplant(donors: Path) -> None:
    whole, parts = model(), [model(3, rank) for rank in range(3)]
    for each in (whole, *parts):
        changes = applied(each, transplanted(donors))
        assert [(change.ratio, change.rel_l2) for change in changes] == [(None, 1.0)] * 3
    assert torch.equal(o_proj(whole, 3), weights()[3] * 2)
    assert torch.equal(torch.cat([o_proj(part, 3) for part in parts], 1), o_proj(whole, 3))
    found = edit.summary(changes, edit.method(transplanted(donors)), 0, 1, "model")
    assert (found.method, found.alpha, found.ratio) == ("transplant", None, None)
    assert found.source == hashlib.sha256((donors / "MANIFEST.json").read_bytes()).hexdigest()


def changed(folder: Path, change: Mapping[str, Any]) -> None:
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    entry = manifest["layers"]["3"]
    entry.update(change)
    manifest["layers"]["3"] = {name: value for name, value in entry.items() if value is not None}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, r"L3\.bin has sha256 [0-9a-f]{64}, and the manifest says 0000"),
        ({"sha256": None}, "layer 3 has no sha256"),
        ({"dtype": "int8"}, "layer 3 has dtype 'int8'"),
        ({"shape": [OUT, WIDE + 1]}, r"the donor is \[24, 31\], and the model's weight \[24, 30\]"),
        ({"shape": "x"}, "is not as expected"),
    ],
)
def test_donors_that_are_refused(donors: Path, change: Mapping[str, Any], said: str) -> None:
    changed(donors, change)
    whole = model()
    with pytest.raises(BadAblation, match=said):
        applied(whole, transplanted(donors), (3,))
    assert torch.equal(o_proj(whole, 3), weights()[3])


def test_donors_that_are_not_there(donors: Path) -> None:
    (donors / "L3.bin").write_bytes(b"short")
    with pytest.raises(BadAblation, match=r"L3\.bin has 5 bytes"):
        applied(model(), transplanted(donors), (3,))
    (donors / "L3.bin").unlink()
    with pytest.raises(BadAblation, match=r"L3\.bin cannot be read"):
        applied(model(), transplanted(donors), (3,))
    (donors / "MANIFEST.json").unlink()
    with pytest.raises(BadAblation, match=r"MANIFEST\.json cannot be read"):
        edit.method(transplanted(donors))
