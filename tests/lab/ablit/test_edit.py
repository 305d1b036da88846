"""Edits in place: exactness, restoring, and everything that is refused before a byte changes."""

import pytest
import torch
from torch import nn
from vllm_glm_exl3.ablation import formula

from ablit.edit import Vectors, digest, edited, random_like
from ablit.spec import EditSpec, Kernel
from bench.errors import BadRequest
from tests.lab.ablit.tiny import HIDDEN, SHA, loaded, vectors


def spec(alpha: float = 2.0, layers: tuple[int, ...] = (1, 3), **more: object) -> EditSpec:
    return EditSpec.model_validate({"direction": SHA, "layers": layers, "alpha": alpha, **more})


def weights(model: nn.Module) -> dict[str, str]:
    return {name: digest(value.data) for name, value in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_signed_ratio_and_restore(dtype: torch.dtype, alpha: float) -> None:
    model, r = loaded(dtype=dtype).model, vectors()
    before = weights(model)
    with edited(model, spec(alpha), r) as edits:
        changed = {name for name, value in weights(model).items() if value != before[name]}
        assert changed == {f"model.layers.{n}.self_attn.o_proj.weight" for n in (1, 3)}
        assert [edit.ratio for edit in edits] == pytest.approx([1 - alpha] * 2, abs=1e-5 if dtype == torch.float32 else 2e-2)
        assert [edit.after_sha256 for edit in edits] == [digest(model.model.layers[n].self_attn.o_proj.weight.data) for n in (1, 3)]
    assert weights(model) == before


def test_restored_after_an_error() -> None:
    model, before = loaded().model, weights(loaded().model)
    with pytest.raises(ZeroDivisionError), edited(model, spec(), vectors()):
        raise ZeroDivisionError
    assert weights(model) == before
    with edited(model, spec(), vectors()):
        pass  # and not marked as edited any more


def test_tensor_parallel_shards_are_the_whole_edit() -> None:
    weight, r = loaded().model.model.layers[1].self_attn.o_proj.weight.data, vectors().tensor
    whole = formula.project(weight, r, 2.0)
    for ranks in (2, 4):
        parts = [formula.project(part.contiguous(), r, 2.0) for part in weight.chunk(ranks, dim=1)]
        assert digest(torch.cat(parts, dim=1)) == digest(whole)


def test_per_layer_vectors_and_kernel() -> None:
    model, r = loaded().model, vectors(7, 4, HIDDEN)
    with edited(model, spec(kernel=Kernel(peak=3, reach=4, floor=0.0)), r) as edits:
        assert [edit.alpha for edit in edits] == [1.0, 2.0]
        assert [edit.ratio for edit in edits] == pytest.approx([0.0, -1.0], abs=1e-5)
    with pytest.raises(BadRequest, match="none for layer 3"), edited(model, spec(), vectors(7, 2, HIDDEN)):
        pass


def test_twin_changes_no_byte() -> None:
    model = loaded().model
    with edited(model, spec(0.0), vectors()) as edits:
        assert all(edit.before_sha256 == edit.after_sha256 and edit.ratio == 1.0 for edit in edits)


def test_down_proj_on_request() -> None:
    with edited(loaded().model, spec(1.0, targets=("o_proj", "down_proj")), vectors()) as edits:
        assert [(edit.layer, edit.target) for edit in edits] == [(1, "o_proj"), (1, "down_proj"), (3, "o_proj"), (3, "down_proj")]


def test_edit_inside_an_edit() -> None:
    model = loaded().model
    with edited(model, spec(), vectors()), pytest.raises(BadRequest, match="edited already"), edited(model, spec(), vectors()):
        pass


def with_nan() -> Vectors:
    drawn = vectors().tensor.clone()
    drawn[3] = float("nan")
    return Vectors(drawn, SHA, {})


@pytest.mark.parametrize(
    ("asked", "direction", "message"),
    [
        (spec(layers=(1, 4)), vectors(), "layer 4 is outside the model, which has layers 0 to 3"),
        (spec(), vectors(5, HIDDEN + 1), "has 32 rows, the direction 33 values: it is another model's"),
        (spec(), with_nan(), "not finite"),
        (spec(), Vectors(torch.zeros(HIDDEN), SHA, {}), "zero"),
        (spec(1e-12), vectors(), "the edit changes no weight"),
        (spec(1e39), vectors(), r"layer 1 o_proj: alpha 1e\+39 leaves values that are not finite in torch\.float32"),
    ],
)
def test_refused_before_a_byte_changes(asked: EditSpec, direction: Vectors, message: str) -> None:
    model = loaded().model
    before = weights(model)
    with pytest.raises(BadRequest, match=message), edited(model, asked, direction):
        pass
    assert weights(model) == before


def test_a_layer_without_a_component_along_the_direction() -> None:
    model = loaded().model
    model.model.layers[3].self_attn.o_proj.weight.data[7] = 0
    before = weights(model)
    along = Vectors(torch.eye(HIDDEN)[7], SHA, {})
    message = "layer 3 o_proj: the weight has no component along the direction; the edit would touch nothing"
    with pytest.raises(BadRequest, match=message), edited(model, spec(), along):
        pass
    assert weights(model) == before


def test_model_without_o_proj() -> None:
    model = loaded().model
    del model.model.layers[3].self_attn.o_proj
    before = digest(model.model.layers[1].self_attn.o_proj.weight.data)
    with pytest.raises(BadRequest, match="layer 3 of this llama has no o_proj"), edited(model, spec(), vectors()):
        pass
    assert digest(model.model.layers[1].self_attn.o_proj.weight.data) == before


def test_quantised_projection() -> None:
    model = loaded().model
    model.model.layers[3].self_attn.o_proj.weight = nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(BadRequest, match=r"torch\.int8 \[4\]: only a 2-D float weight"), edited(model, spec(), vectors()):
        pass


def test_random_controls() -> None:
    real = vectors()
    a, b, again = random_like(real, 0), random_like(real, 1), random_like(real, 0)
    assert torch.equal(a.tensor, again.tensor)
    assert float(a.tensor.norm()) == pytest.approx(float(real.tensor.norm()), rel=1e-6)
    assert not torch.equal(a.tensor, b.tensor)
    assert (a.id, b.id) == ("random-0", "random-1")
