"""What the served sweep does without torch is what the overlay does with it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from vllm_glm_exl3.ablation import direction as theirs
from vllm_glm_exl3.ablation import formula
from vllm_glm_exl3.errors import BadAblation

from ablit import directions, spec
from ablit.served import agree
from ablit.served import direction as ours
from bench.errors import BadRequest
from tests.lab.ablit.tiny import loaded

VALUES = np.array([0.5, -2.0, 3.25, 1e-7], np.float32)


def test_our_file_is_read_by_the_overlay_and_theirs_by_us(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(ours.written(VALUES, {"model": "tiny"}))
    found = theirs.read(tmp_path / "a.safetensors")
    assert found.vectors.tolist() == VALUES.tolist()
    assert found.metadata == {"model": "tiny", "hidden": "4"}
    assert found.sha256 == ours.read(tmp_path / "a.safetensors").sha256
    theirs.write(tmp_path / "b.safetensors", torch.tensor([[1.0, 2.0], [3.0, 4.0]]), {"variant": "per-layer"})
    back = ours.read(tmp_path / "b.safetensors")
    assert back.vectors.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert back.facts["variant"] == "per-layer"


def test_a_pt_file_is_converted(tmp_path: Path) -> None:
    torch.save({"directions": torch.tensor([[0.5, 2.0]])}, tmp_path / "r.pt")
    directions.convert(tmp_path / "r.pt", tmp_path / "r.safetensors")
    found = ours.read(tmp_path / "r.safetensors")
    assert found.vectors.tolist() == [0.5, 2.0]
    assert found.facts["name"] == "r"
    torch.save({"other": 1}, tmp_path / "x.pt")
    with pytest.raises(BadRequest, match='no tensor "directions"'):
        directions.convert(tmp_path / "x.pt", tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "text", ["10-29", "1,3,5-7", " 2 - 4 ,2", "0", "", "1,,2", "5-3", "30", "29-30", "-1", "1-", "all", "1.5", "\u0661"]
)
def test_layers_are_read_as_the_overlay_reads_them(text: str) -> None:
    try:
        wanted: object = formula.layers(text, 30)
    except BadAblation as error:
        wanted = f"--layers: {error}"
    try:
        found: object = spec.layers(text, 30)
    except BadRequest as error:
        found = str(error)
    assert found == wanted


def test_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="holds no served points"):
        agree.compare(tmp_path, loaded(), tmp_path / "d", print)
