"""The selfcheck passes here, and ends with 1 and the reason for each way in which an installation can be wrong."""

import pytest
import torch
import vllm_glm_exl3
from vllm_glm_exl3 import codec, moe_torch, selfcheck

pytest.importorskip("vllm")


def test_it_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck.main() == 0
    out = capsys.readouterr().out
    assert "exl3 is registered" in out
    on_gpu = {"coop", "sorted", "loop", "linear, decoded first"} if torch.cuda.is_available() else set()
    expected = {"torch", "linear"} | on_gpu
    assert {line.partition(": relative error")[0] for line in out.splitlines() if "relative error" in line} == expected


def failing(capsys: pytest.CaptureFixture[str]) -> str:
    assert selfcheck.main() == 1
    return capsys.readouterr().err


def test_a_path_that_computes_something_else(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = moe_torch.run
    monkeypatch.setattr(moe_torch, "run", lambda *words: right(*words) * 1.01)
    assert "selfcheck: torch differ from the reference by more than 0.005" in failing(capsys)


def test_a_linear_layer_that_computes_something_else(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    right = codec.linear
    monkeypatch.setattr(codec, "linear", lambda *words: right(*words).roll(1, -1))
    if torch.cuda.is_available():
        pytest.skip("on a GPU linear layers do not run by this function; without one this test runs")
    assert "linear differ from the reference by more than 0.005" in failing(capsys)


def test_another_vllm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_glm_exl3, "_vllm_version", lambda: "0.33.0")
    assert "selfcheck: WrongVllm: vllm-glm-exl3 0.1.0 knows vLLM 0.32.*" in failing(capsys)


@pytest.mark.parametrize(("name", "value"), [("EXL3_MOE_PATH", "fast"), ("GLM53_SPINWAIT_MS", "0"), ("ABLIT_ALPHA", "-1")])
def test_variables_that_make_no_sense(name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLIT", "1" if name.startswith("ABLIT") else "0")
    monkeypatch.setenv(name, value)
    assert name in failing(capsys)
