"""The hook of the edit in vLLM: which model gets which layers, when, and what it refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from vllm_glm_exl3.ablation import edit, settings
from vllm_glm_exl3.errors import BadAblation

from tests.overlay.ablation_models import LAYERS, model, wanted_in


@pytest.fixture
def wanted(tmp_path: Path) -> settings.Wanted:
    return wanted_in(tmp_path)


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
