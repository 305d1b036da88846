"""Real vLLM with the plugin found by its entry point: EXL3 models answer as their dense twins do, on one rank and on two.

Each engine is a process of its own and takes 30 to 100 s on two cores.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.overlay import models

pytest.importorskip("vllm")
pytestmark = [pytest.mark.timeout(900)]

NEAR = 5e-5  # of log-probabilities: fp32 in another order (3e-6 seen)


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    logprobs: list[float]
    leads: list[float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twins")


@cache
def twins(folder: Path, everything: bool) -> tuple[Path, Path]:
    return models.make_twins(folder / str(everything), everything)


def engine(model: Path, ranks: int = 1, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.overlay.generate", str(model), str(ranks)],
        capture_output=True, text=True, timeout=400, check=False, env=os.environ | environment,
    )  # fmt: skip


@cache
def answers(model: Path, ranks: int = 1) -> list[Answer]:
    done = engine(model, ranks)
    rows = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    assert rows, done.stdout[-2000:] + done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(rows[-1])
    return [Answer(**row) for row in found]


def assert_alike(found: list[Answer], wanted: list[Answer]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert min(other.leads) > 10 * NEAR, "the model is too close to a tie to tell"
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=NEAR)


@pytest.mark.parametrize(("everything", "ranks"), [(False, 1), (False, 2), (True, 1)], ids=["experts", "experts, 2 ranks", "attention too"])
def test_answers_as_the_dense_twin(folder: Path, everything: bool, ranks: int) -> None:
    packed, dense = twins(folder, everything)
    assert_alike(answers(packed, ranks), answers(dense))


def refused(model: Path, ranks: int = 1) -> str:
    done = engine(model, ranks)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_a_contradicting_pack_stops_the_start(folder: Path) -> None:
    packed, _ = twins(folder, False)
    config = json.loads((packed / "config.json").read_text())
    other = folder / "wrong"
    other.mkdir()
    for file in packed.iterdir():
        (other / file.name).symlink_to(file)
    (other / "config.json").unlink()
    config["quantization_config"]["layer_bits"] = {"1": 3}
    (other / "config.json").write_text(json.dumps(config))
    assert "layers.1.mlp.experts.0.down_proj: stored with 4 bits per weight, while the configuration says 3" in refused(other)


def test_parts_that_cut_a_block_stop_the_start(folder: Path) -> None:
    """One key head of 64 for each of two ranks: half a block."""
    assert "qkv_proj (out size of this rank): 64 is not whole 128-blocks" in refused(twins(folder, True)[0], 2)
