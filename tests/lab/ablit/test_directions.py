"""Directions: the arithmetic by hand, files with provenance, and files that belong to another model."""

import json
from pathlib import Path

import pytest
import torch
from vllm_glm_exl3.ablation import direction as files

from ablit import directions
from ablit.__main__ import Job, direction
from ablit.directions import Recipe, difference, quality
from ablit.prompts import Prompts
from bench.errors import BadRequest
from tests.lab.ablit.tiny import HIDDEN, LAYERS, SHA, loaded

SOURCE = "dataset a/b at 0, file x.csv, column c"
SIDES = (
    Prompts("a.txt", ("be short", "tell me briefly", "in a word"), "1" * 64),
    Prompts("b.txt", ("go on", "at length"), "2" * 64, SOURCE),
)


def test_difference_by_hand() -> None:
    # two prompts, two layers, two values
    positive = torch.tensor([[[1.0, 0.0], [4.0, 4.0]], [[3.0, 2.0], [4.0, 8.0]]])
    negative = torch.tensor([[[0.0, 0.0], [2.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]])
    assert difference(positive, negative, Recipe(0)).tolist() == [2.0, 1.0]
    assert difference(positive, negative, Recipe(1)).tolist() == [2.0, 6.0]
    assert difference(positive, negative, Recipe(1, variant="orthogonal")).tolist() == [0.0, 6.0]
    assert difference(positive, negative, Recipe(1, variant="per-layer")).tolist() == [[2.0, 1.0], [2.0, 6.0]]
    with pytest.raises(BadRequest, match="--layer is 2: the model has layers 0 to 1"):
        difference(positive, negative, Recipe(2))


def test_residuals_are_the_models_hidden_states() -> None:
    tiny = loaded()
    found = directions.residuals(tiny, SIDES[0], 1)
    ids = torch.tensor([tiny.tokenizer.encode(">tell me briefly<")])
    states = tiny.model.model(ids, output_hidden_states=True).hidden_states
    # the last one that transformers gives has the final norm applied; the ones before are raw
    # values reach 40, and on some processors fp32 leaves 5e-5 of difference between the two orders of summing
    assert torch.allclose(found[1, : LAYERS - 1], torch.stack([s[0, -1] for s in states[1:LAYERS]]), atol=2e-4)
    assert found.shape == (3, LAYERS, HIDDEN)


def test_quality() -> None:
    a = torch.tensor([[[1.0, 0.0]], [[1.2, 0.0]], [[1.0, 0.0]], [[1.2, 0.0]]])
    found = quality(a, -a, 0)
    # means at +-1.1, variance 0.01333 on both sides
    assert found["norm"] == pytest.approx(2.2)
    assert found["separation"] == pytest.approx(2.2 / 0.0133333**0.5, rel=1e-4)
    assert found["halves"] == pytest.approx(1.0)


def test_file_and_provenance(tmp_path: Path) -> None:
    tiny, out = loaded(), tmp_path / "sub" / "d.safetensors"
    directions.make(tiny, SIDES, Recipe(2, positions=2, variant="orthogonal"), out, {"model_revision": "7"})
    found = directions.open_file(out, tiny)
    assert found.tensor.shape == (HIDDEN,)
    names = ("name", "model", "model_revision", "variant", "layer", "positions", "positive_sha256", "negative_source", "fitted_on")
    kept = {name: found.facts[name] for name in names}
    assert kept == {
        "name": "d",
        "model": "tiny",
        "model_revision": "7",
        "variant": "orthogonal",
        "layer": "2",
        "positions": "2",
        "positive_sha256": "1" * 64,
        "negative_source": SOURCE,
        "fitted_on": json.dumps([3, 2]),
    }
    assert "positive_source" not in found.facts
    assert found.id == files.read(out).sha256


def test_sides_that_do_not_differ(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="the direction is zero\ntry: prompts that differ"):
        directions.make(loaded(), (SIDES[0], SIDES[0]), Recipe(1), tmp_path / "d.safetensors", {})
    assert not (tmp_path / "d.safetensors").exists()


def test_a_prompt_on_both_sides_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nTwo.\n")
    (tmp_path / "b.txt").write_text("three\n two. \n")
    flags = {"positive": str(tmp_path / "a.txt"), "negative": str(tmp_path / "b.txt"), "model": str(tmp_path / "no-model")}
    with pytest.raises(BadRequest, match=r"1 prompts are in both files, such as 'two\.'"):
        direction(Job("direction", flags))


def test_more_positions_than_a_prompt_has() -> None:
    with pytest.raises(BadRequest, match=r"--positions is 40: the shortest prompt of a\.txt has fewer tokens"):
        directions.residuals(loaded(), SIDES[0], 40)


def test_direction_of_another_model(tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    directions.make(loaded(seed=0), SIDES, Recipe(2), out, {})
    with pytest.raises(BadRequest, match=r"was made for tiny .*, other weights"):
        directions.open_file(out, loaded(seed=1))
    files.write(tmp_path / "wide.safetensors", torch.ones(HIDDEN + 2), {})
    with pytest.raises(BadRequest, match="has 34 values, tiny a hidden size of 32"):
        directions.open_file(tmp_path / "wide.safetensors", loaded())
    with pytest.raises(BadRequest, match=r"try: invoke ablit\.direction"):
        directions.open_file(tmp_path / "none.safetensors", loaded())


def test_the_dtype_of_the_fit_excuses_no_other_weights(tmp_path: Path) -> None:
    """A model's sha256 is of its files: another --dtype does not make it another one, and does not make other weights the same."""
    out = tmp_path / "d.safetensors"
    directions.make(loaded(seed=0), SIDES, Recipe(2), out, {})
    assert directions.open_file(out, loaded(seed=0, dtype=torch.bfloat16)).tensor.shape == (HIDDEN,)
    with pytest.raises(BadRequest, match=r"was made for tiny .*, other weights"):
        directions.open_file(out, loaded(seed=1, dtype=torch.bfloat16))


def test_a_files_own_notes_do_not_replace_its_sha256(tmp_path: Path) -> None:
    files.write(tmp_path / "d.safetensors", torch.ones(HIDDEN), {"sha256": "0" * 64, "name": "polite"})
    found = directions.open_file(tmp_path / "d.safetensors", loaded())
    assert found.facts["sha256"] == found.id != "0" * 64
    assert found.facts["name"] == "polite"


def test_public_recipes_form(tmp_path: Path) -> None:
    torch.save({"directions": torch.ones(1, HIDDEN)}, tmp_path / "d.pt")
    found = directions.open_file(tmp_path / "d.pt", loaded())
    assert found.tensor.shape == (HIDDEN,)
    assert found.id != SHA
