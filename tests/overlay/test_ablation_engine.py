"""Real vLLM, real weights (SmolLM2-135M): a model that is edited at load answers as one whose checkpoint was edited before.

Both engines run in one process; about 75 s of processor time.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm_glm_exl3.ablation import direction, edit, formula

from tests.overlay import smollm2

pytest.importorskip("vllm")
pytestmark = [pytest.mark.timeout(900)]

LAYERS = tuple(range(10, 30))
PROMPTS = ([1, 504, 3575, 282, 4649, 314], list(range(1000, 1040)))
O_PROJ = "model.layers.{}.self_attn.o_proj.weight"


@dataclass(frozen=True)
class Ran:
    """What both engines answered, what the first one logged, and the tensors of the checkpoint that was edited before."""

    at_load: list[dict[str, Any]]
    before: list[dict[str, Any]]
    log: str
    stock: dict[str, torch.Tensor]
    edited: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder, base = tmp_path_factory.mktemp("edited"), smollm2.ensure()
    r = direction.write(folder / "r.safetensors", torch.randn(576, generator=torch.Generator().manual_seed(5)), {"model": "SmolLM2"})
    stock = load_file(base / "model.safetensors")
    edited = stock | {O_PROJ.format(n): formula.project(stock[O_PROJ.format(n)], r.vectors, 3.0) for n in LAYERS}
    (folder / "model").mkdir()
    save_file(edited, folder / "model/model.safetensors", metadata={"format": "pt"})
    (folder / "model/config.json").symlink_to(base / "config.json")
    asked = {"ABLIT": "1", "ABLIT_LAYERS": "10-29", "ABLIT_DIRECTION": str(folder / "r.safetensors")}
    at_load = {"model": str(base), "environment": asked, "prompts": PROMPTS}
    cases = [at_load, {"model": str(folder / "model"), "environment": {}, "prompts": PROMPTS}]
    out = folder / "out.json"
    words = [sys.executable, "-m", "tests.overlay.edited", json.dumps(cases), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=800, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    edited_at_load, edited_before = json.loads(out.read_text())
    return Ran(edited_at_load, edited_before, done.stdout + done.stderr, stock, edited)


def test_same_answers_to_the_last_bit(ran: Ran) -> None:
    assert len(ran.at_load) == 2
    for one, other in zip(ran.at_load, ran.before, strict=True):
        assert len(one["ids"]) == 16
        assert one == other


def test_every_layer_is_reported_with_its_hashes(ran: Ran) -> None:
    found = re.findall(r"rank 0 model layer (\d+): signed ratio (\S+), rel_l2 (\S+), sha256 (\w{64}) -> (\w{64})$", ran.log, re.MULTILINE)
    assert [int(row[0]) for row in found] == list(LAYERS)
    for number, ratio, change, before, after in found:
        name = O_PROJ.format(number)
        assert (before, after) == (edit.sha256(ran.stock[name]), edit.sha256(ran.edited[name]))
        assert float(ratio) == pytest.approx(-2, abs=1e-3)
        assert 0.05 < float(change) < 0.3


def test_one_summary(ran: Ran) -> None:
    (text,) = re.findall(r"ablation summary: (\{.*\})$", ran.log, re.MULTILINE)
    found = json.loads(text)
    assert (found["layers"], found["alpha"], found["world"], found["ratio"]) == ("10-29", 3.0, 1, [-2.0, -2.0])
