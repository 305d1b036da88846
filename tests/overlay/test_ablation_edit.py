"""Editing a loaded model: all of the range or nothing, on parts of a rank as on the whole."""

import dataclasses
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from vllm_glm_exl3.ablation import edit, formula, settings
from vllm_glm_exl3.errors import BadAblation

from tests.overlay.ablation_models import OUT, WIDE, Proj, applied, model, o_proj, wanted_in, weights

reports = importlib.import_module("cluster.boot.ablation")  # by name: its types are checked where the launcher's are


@pytest.fixture
def wanted(tmp_path: Path) -> settings.Wanted:
    return wanted_in(tmp_path)


def test_the_layers_of_the_range_and_no_other(wanted: settings.Wanted) -> None:
    whole = model()
    changes = applied(whole, wanted)
    assert [change.layer for change in changes] == [2, 3, 4]
    r = torch.linspace(-1, 2, OUT)
    for layer, stock in enumerate(weights()):
        now = formula.project(stock, r, 3.0) if layer in (2, 3, 4) else stock
        assert torch.equal(o_proj(whole, layer), now)
    assert all(change.ratio == pytest.approx(-2, abs=0.05) for change in changes)
    assert changes[0].sha256_before == hashlib.sha256(weights()[2].view(torch.int16).numpy().tobytes()).hexdigest()
    assert changes[0].sha256_after == edit.sha256(o_proj(whole, 2)) != changes[0].sha256_before


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_ranks_are_parts_of_the_whole(wanted: settings.Wanted, ranks: int) -> None:
    whole, parts = model(), [model(ranks, rank) for rank in range(ranks)]
    for each in (whole, *parts):
        applied(each, wanted)
    assert torch.equal(torch.cat([o_proj(part, 3) for part in parts], 1), o_proj(whole, 3))


def test_a_second_edit(wanted: settings.Wanted) -> None:
    whole = model()
    applied(whole, wanted)
    kept = o_proj(whole, 3).clone()
    with pytest.raises(BadAblation, match=r"layers\.2\.self_attn\.o_proj was edited already"):
        applied(whole, wanted)
    assert torch.equal(o_proj(whole, 3), kept)


def _other(change: Callable[[nn.Module], None]) -> nn.Module:
    whole = model()
    change(whole.get_submodule("model.layers.4.self_attn"))
    return whole


def quantized(attention: nn.Module) -> None:
    attention.o_proj = nn.Module()
    attention.o_proj.register_parameter("trellis", nn.Parameter(torch.zeros(1, 1, 64, dtype=torch.int16), requires_grad=False))


def packed(attention: nn.Module) -> None:
    attention.o_proj = Proj(torch.zeros(OUT, WIDE, dtype=torch.int8))


def missing(attention: nn.Module) -> None:
    del attention.o_proj


def narrow(attention: nn.Module) -> None:
    attention.o_proj = Proj(torch.ones(OUT - 1, WIDE))


def second(attention: nn.Module) -> None:
    attention.layers = nn.ModuleDict({"4": nn.Module()})
    attention.layers["4"].self_attn = nn.Module()
    attention.layers["4"].self_attn.o_proj = Proj(torch.ones(OUT, WIDE))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (quantized, r"layers\.4\.self_attn\.o_proj is quantized \(trellis torch\.int16\)"),
        (packed, r"o_proj is quantized \(weight torch\.int8\)"),
        (missing, "no self_attn.o_proj was found in 4 of the layers to edit: nothing was edited"),
        (narrow, r"layers\.4\.self_attn\.o_proj: the direction has 24 values, and the weight 23 rows"),
        (second, "layer 4 has two output projections"),
    ],
)
def test_nothing_is_edited_unless_all_can_be(wanted: settings.Wanted, change: Callable[[nn.Module], None], said: str) -> None:
    whole = _other(change)
    with pytest.raises(BadAblation, match=said):
        applied(whole, wanted)
    assert torch.equal(o_proj(whole, 2), weights()[2])


def test_an_edit_that_did_not_take(wanted: settings.Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formula, "project", lambda weight, r, alpha: weight.clone())
    with pytest.raises(BadAblation, match=r"what lies along the direction is 1\.00000 times what it was, not -2"):
        applied(model(), wanted)


def test_summary_is_what_the_launcher_reads(wanted: settings.Wanted) -> None:
    how = edit.method(wanted)
    found = edit.summary(applied(model(2, 1), wanted), how, 1, 2, "model")
    line = "(Worker_TP1 pid=12345) INFO 11-30 00:51:15 [ablation.py:109] " + reports.MARK + found.line()
    assert len(line) < 400
    (read,) = reports.read([SimpleNamespace(at_unix_s=0.0, text=line)])
    assert dataclasses.asdict(read) == dataclasses.asdict(found)
    assert (read.layers, read.alpha, read.source, read.world) == ("2-4", 3.0, how.source, 2)


def test_ranges() -> None:
    assert edit.ranges([1, 2, 3, 7, 9, 10]) == "1-3,7,9-10"
    assert edit.split((1, 2, 5), 5) == {"model": (1, 2), "mtp": (5,)}
