"""What the exactness and speed receipts say, on a tiny model where it can be checked by hand."""

import pytest
import torch
from vllm_glm_exl3.ablation import formula

from ablit import measure, measure_exact
from ablit.edit import edited
from ablit.spec import EditSpec
from bench.errors import BadRequest
from tests.lab.ablit.tiny import HIDDEN, LAYERS, SHA, bench, loaded, vectors


def test_every_projection_is_edited_as_asked() -> None:
    tiny = loaded()
    before = measure_exact.weights_sha256(tiny)
    found = list(measure_exact.rows(tiny, vectors(), alphas=(1.0, 3.0), ranks=(2, 4)))
    assert len(found) == LAYERS * 2 * 2 * 2  # layers, targets, dtypes, alphas
    assert {(row["layer"], row["target"]) for row in found} == {(n, t) for n in range(LAYERS) for t in ("o_proj", "down_proj")}
    assert all(row["shards_equal"] == [2, 4] for row in found)
    for row in found:
        assert row["ratio"] == pytest.approx(1 - row["alpha"], abs=1e-5 if row["dtype"] == "float32" else 3e-2)
    assert measure_exact.weights_sha256(tiny) == before


def test_shards_that_are_not_the_whole_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit whose figure depends on all columns, as one with a norm over the whole weight would."""
    monkeypatch.setattr(
        "vllm_glm_exl3.ablation.formula.project", lambda weight, vector, alpha: weight - alpha * weight.mean() * vector.unsqueeze(1)
    )
    row = measure_exact.tensor(torch.randn(HIDDEN, 12, generator=torch.Generator().manual_seed(1)), vectors().tensor, 1.0, (2, 3))
    assert row["shards_equal"] == []
    assert measure_exact.summary([row])["shards_unequal"] == 2


def test_columns_that_cannot_be_shared_out() -> None:
    with pytest.raises(BadRequest, match="32 columns cannot be shared out to 3 ranks"):
        measure_exact.tensor(torch.ones(4, 32), torch.ones(4), 1.0, (3,))


def test_summary_by_hand() -> None:
    rows = [
        {"dtype": "float32", "alpha": 3.0, "ratio": -2.03, "shards_equal": [2, 3]},
        {"dtype": "float32", "alpha": 0.5, "ratio": 0.49, "shards_equal": [3]},
        {"dtype": "bfloat16", "alpha": 1.0, "ratio": 0.002, "shards_equal": [2, 3]},
    ]
    found = measure_exact.summary(rows)
    # 0.03 / 3 = 0.01, and 0.01 / 1
    assert found["worst_ratio_error"] == pytest.approx({"float32": 0.01, "bfloat16": 0.002})
    assert (found["edits"], found["shards_unequal"]) == (3, 1)


def test_in_the_model() -> None:
    tiny = loaded()
    found = measure_exact.in_the_model(tiny, vectors(), bench(tiny).windows[:1], [2, 3], measure.worst)
    assert found["null_kld_max"] == found["null_tv_max"] == 0
    assert found["alpha_3_kld"] > 0.01
    assert 0 < found["alpha_3_error_against_fp64"] < 2e-5
    assert found["edit_inside_an_edit"].startswith("the model is edited already")
    assert found["weights_came_back"] is True


def test_a_null_edit_that_changes_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that moves the weights at alpha 0 too: the figures that are 0 for a right one are not."""
    project = formula.project
    monkeypatch.setattr("vllm_glm_exl3.ablation.formula.project", lambda weight, vector, alpha: project(weight, vector, alpha or 1.0))
    tiny = loaded()
    found = measure_exact.in_the_model(tiny, vectors(), bench(tiny).windows[:1], [2, 3], measure.worst)
    assert found["null_kld_max"] > 1e-3
    assert found["null_tv_max"] > 1e-3


def test_the_plain_form_is_the_panels() -> None:
    """measure.plain_point, against which the speed is measured, gives the same figures."""

    tiny = loaded()
    base = bench(tiny).base
    ids = torch.tensor([window.tokens[:-1] for window in bench(tiny).windows])
    with edited(tiny.model, EditSpec(direction=SHA, layers=(2,), alpha=2), vectors()):
        full = measure.plain_point(tiny, ids, base.base.hidden.view(*ids.shape, -1), base.head.weight)
        assert torch.allclose(full.double(), base.measure(2).kld, atol=2e-5)
