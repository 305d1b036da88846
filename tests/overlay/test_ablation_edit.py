"""Editing a loaded model: all of the range or nothing, on parts of a rank as on the whole; settings, donors and the hook in vLLM."""

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm_glm_exl3.ablation import direction, edit, formula, settings
from vllm_glm_exl3.errors import BadAblation

reports = importlib.import_module("cluster.boot.ablation")  # by name: its types are checked where the launcher's are

OUT, WIDE, LAYERS = 24, 30, 6


class Proj(nn.Module):
    """As vLLM's RowParallelLinear is seen from here."""

    def __init__(self, weight: Tensor, ranks: int = 1, rank: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.tp_size, self.tp_rank = ranks, rank


def weights() -> list[Tensor]:
    made = torch.Generator().manual_seed(3)
    return [torch.randn(OUT, WIDE, generator=made).to(torch.bfloat16) for _ in range(LAYERS)]


def model(ranks: int = 1, rank: int = 0, mtp: bool = False) -> nn.Module:
    """model.layers.N.self_attn.o_proj, or model.layers.N.mtp_block.self_attn.o_proj; this rank's columns."""
    part = WIDE // ranks
    layers = nn.ModuleDict()
    for number, weight in enumerate(weights()):
        block, attention = nn.Module(), nn.Module()
        attention.o_proj = Proj(weight[:, rank * part : (rank + 1) * part].clone(), ranks, rank)
        attention.again = attention.o_proj  # as GLM's attention has it twice
        block.self_attn = attention
        holder = nn.Module()
        holder.mtp_block = block
        layers[str(number)] = holder if mtp else block
    root, inner = nn.Module(), nn.Module()
    inner.layers, root.model = layers, inner
    return root


def o_proj(whole: nn.Module, layer: int) -> Tensor:
    found: Tensor = whole.get_submodule(f"model.layers.{layer}.self_attn.o_proj").weight.data
    return found


@pytest.fixture
def wanted(tmp_path: Path) -> settings.Wanted:
    made = direction.write(tmp_path / "r.safetensors", torch.linspace(-1, 2, OUT), {})
    assert made.hidden == OUT
    return settings.read({"ABLIT_LAYERS": "2-4", "ABLIT_DIRECTION": str(tmp_path / "r.safetensors"), "ABLIT_DIR": str(tmp_path)})


def applied(whole: nn.Module, wanted: settings.Wanted, layers: tuple[int, ...] = (2, 3, 4)) -> list[edit.Change]:
    return edit.apply(edit.targets(whole, layers, mtp=False), edit.method(wanted))


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


# --- settings ---


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


# --- the hook ---


def config(draft: bool = False, following: int = 0, layers: int = LAYERS - 1, **more: Any) -> Any:
    text = SimpleNamespace(num_hidden_layers=layers, num_nextn_predict_layers=following)
    return SimpleNamespace(runner_type="draft" if draft else "generate", hf_config=SimpleNamespace(**more), hf_text_config=text)


@pytest.fixture
def hook(wanted: settings.Wanted, monkeypatch: pytest.MonkeyPatch) -> Any:
    """patches.ablation in a process with ABLIT=1, on the first of two ranks."""
    pytest.importorskip("vllm")
    from vllm_glm_exl3.patches import ablation

    monkeypatch.setenv("ABLIT", "1")
    monkeypatch.setenv("ABLIT_LAYERS", "3-5")
    monkeypatch.setenv("ABLIT_DIRECTION", str(wanted.direction))
    monkeypatch.setattr(ablation, "_rank", lambda: (0, 2))
    monkeypatch.setattr(ablation, "_done", [])
    return ablation


def edited(whole: nn.Module) -> list[int]:
    return [int(name.split(".")[2]) for name, module in whole.named_modules() if hasattr(module, edit.MARK)]


def test_target_and_mtp_block_have_their_own_layers(hook: Any) -> None:
    target, block = model(), model(mtp=True)
    hook.edit_loaded(target, config(following=1))
    hook.edit_loaded(block, config(draft=True, following=1))
    assert (edited(target), edited(block), hook._done) == ([3, 4], [5], ["model", "mtp"])


def test_mtp_block_left_out_by_choice(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLIT_INCLUDE_MTP", "0")
    block = model(mtp=True)
    hook.edit_loaded(block, config(draft=True, following=1))
    assert edited(block) == []


def test_a_drafter_with_layers_of_its_own_is_left_alone(hook: Any) -> None:
    drafter = model()
    hook.edit_loaded(drafter, config(draft=True, following=1))
    hook.edit_loaded(drafter, config(draft=True, layers=2))  # fewer layers than ABLIT_LAYERS names: its numbers are its own
    assert edited(drafter) == []


def test_what_the_hook_refuses(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadAblation, match="there is no layer 5, the last of 5 is 4"):
        hook.edit_loaded(model(), config())
    with pytest.raises(BadAblation, match=r"config\.json says that it is edited already"):
        hook.edit_loaded(model(), config(following=1, ablation={"alpha": 3}))
    monkeypatch.setenv("ABLIT_LAYERS", "5")
    with pytest.raises(BadAblation, match="ABLIT_LAYERS=5 names none of the model's 5 layers"):
        hook.edit_loaded(model(), config(following=1))


def test_without_ablit_nothing_happens(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLIT", "0")
    whole = model()
    hook.edit_loaded(whole, config())
    assert edited(whole) == []
    hook.with_proof(lambda worker: None)(SimpleNamespace())


def test_a_loader_that_leaves_no_chance(hook: Any) -> None:
    worker = SimpleNamespace(vllm_config=SimpleNamespace(load_config=SimpleNamespace(load_format="tensorizer")))
    with pytest.raises(BadAblation, match="load format tensorizer gave no chance to edit"):
        hook.with_proof(lambda self: None)(worker)
    hook.with_proof(lambda self: hook.edit_loaded(model(), config(following=1)))(worker)
    with pytest.raises(BadAblation, match="gave no chance"):  # what an earlier load edited proves nothing of this one
        hook.with_proof(lambda self: None)(worker)


def test_edit_comes_before_packing(hook: Any) -> None:
    whole, seen = model(), []
    hook.with_edit(lambda model, *_: seen.extend(edited(model)))(whole, config(following=1), None)
    assert seen == [3, 4]


def test_order_of_vllm_s_loaders() -> None:
    """The function that is wrapped is called between load_weights and the engine's first use, in the loader that others inherit from."""
    pytest.importorskip("vllm")
    import inspect

    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    text = inspect.getsource(BaseModelLoader.load_model)
    assert text.index("self.load_weights(model") < text.index("process_weights_after_loading(model")
