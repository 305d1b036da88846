"""Real vLLM on two ranks: EXL3 experts with attention edited at load answer as the dense twin whose checkpoint was edited before."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm_glm_exl3.ablation import direction, formula

from tests.overlay import models

pytest.importorskip("vllm")
pytestmark = [pytest.mark.timeout(900)]

PROMPTS = ([7, 101, 33, 250, 12, 400], list(range(300, 340)))
NEAR = 5e-5  # of log-probabilities: fp32 in another order (3e-6 seen)


def ran(case: dict[str, Any], out: Path) -> tuple[list[dict[str, Any]], str]:
    words = [sys.executable, "-m", "tests.overlay.edited", json.dumps([{**case, "prompts": PROMPTS}]), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(out.read_text())[0], done.stdout + done.stderr


def test_two_ranks_answer_as_the_edited_dense_twin(tmp_path: Path) -> None:
    packed, dense = models.make_twins(tmp_path / "models")
    tensors = load_file(dense / "model.safetensors")
    names = [f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (0, 1)]
    noise = torch.randn(tensors[names[0]].shape[0], generator=torch.Generator().manual_seed(11))
    r = direction.write(tmp_path / "r.safetensors", noise, {})
    edited = tensors | {name: formula.project(tensors[name], r.vectors, 3.0) for name in names}
    save_file(edited, dense / "model.safetensors", metadata={"format": "pt"})
    asked = {"ABLIT": "1", "ABLIT_LAYERS": "0-1", "ABLIT_DIRECTION": str(tmp_path / "r.safetensors")}
    found, log = ran({"model": str(packed), "ranks": 2, "environment": asked}, tmp_path / "two.json")
    wanted, _ = ran({"model": str(dense), "environment": {}}, tmp_path / "one.json")
    for one, other in zip(found, wanted, strict=True):
        assert min(other["leads"]) > 10 * NEAR, "the model is too close to a tie to tell"
        assert one["ids"] == other["ids"]
        assert one["logprobs"] == pytest.approx(other["logprobs"], abs=NEAR)
    summaries = [json.loads(text) for text in re.findall(r"ablation summary: (\{.*\})", log)]
    assert sorted(each["rank"] for each in summaries) == [0, 1]
    assert {each["ratio"][0] for each in summaries} == {-2.0}
    assert len({(each["layers"], each["alpha"], each["source"], each["world"]) for each in summaries}) == 1
