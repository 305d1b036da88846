"""Real vLLM with the plugin found by its entry point: EXL3 models answer as their dense twins do, on one rank and on two.

Two processes: all models on one rank, one after the other (40 s on two quiet cores), and those on two ranks (70 s).
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


@dataclass(frozen=True)
class Said:
    """`answers` of each engine that ran, `refused` of each that did not start, by the model's name; `log`: what the process wrote."""

    answers: dict[str, list[Answer]]
    refused: dict[str, str]
    log: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """experts/ and everything/, each with exl3 and dense; and wrong, which contradicts itself."""
    folder = tmp_path_factory.mktemp("twins")
    packed, _ = models.make_twins(folder / "experts")
    models.make_twins(folder / "everything", everything=True)
    _contradict(packed, folder / "wrong")
    return folder


def _contradict(packed: Path, other: Path) -> None:
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["layer_bits"] = {"1": 3}
    other.mkdir()
    for file in packed.iterdir():
        if file.name != "config.json":
            (other / file.name).symlink_to(file)
    (other / "config.json").write_text(json.dumps(config))


@cache
def engines(folder: Path, ranks: int, *names: str) -> Said:
    """A process with one engine after the other, for the models at folder/name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.overlay.generate", str(ranks), *(str(folder / name) for name in names)],
        capture_output=True, text=True, timeout=400, check=False, env=os.environ,
    )  # fmt: skip
    log = done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("[[", '["'))]
    assert done.returncode == 0, log[-6000:]
    found: dict[str, Any] = dict(zip(names, json.loads(rows[-1]), strict=True))
    answers = {name: [Answer(**row) for row in said] for name, said in found.items() if not isinstance(said, str)}
    return Said(answers, {name: said for name, said in found.items() if isinstance(said, str)}, log)


@pytest.fixture(scope="module")
def one(folder: Path) -> Said:
    return engines(folder, 1, "experts/dense", "experts/exl3", "everything/dense", "everything/exl3", "wrong")


@pytest.fixture(scope="module")
def two(folder: Path) -> Said:
    return engines(folder, 2, "experts/exl3", "everything/exl3")


def assert_alike(found: list[Answer], wanted: list[Answer]) -> None:
    for mine, other in zip(found, wanted, strict=True):
        assert min(other.leads) > 10 * NEAR, "the model is too close to a tie to tell"
        assert mine.ids == other.ids
        assert mine.logprobs == pytest.approx(other.logprobs, abs=NEAR)


@pytest.mark.parametrize("kind", ["experts", "everything"])
def test_answers_as_the_dense_twin(one: Said, kind: str) -> None:
    assert_alike(one.answers[f"{kind}/exl3"], one.answers[f"{kind}/dense"])


def test_the_twins_of_two_kinds_answer_differently(one: Said) -> None:
    """Else equal answers would prove nothing."""
    assert one.answers["experts/dense"][0].ids != one.answers["everything/dense"][0].ids


def test_two_ranks_answer_as_the_dense_twin_on_one(one: Said, two: Said) -> None:
    assert_alike(two.answers["experts/exl3"], one.answers["experts/dense"])


def test_a_contradicting_pack_stops_the_start(one: Said) -> None:
    assert "layers.1.mlp.experts.0.down_proj: stored with 4 bits per weight, while the configuration says 3" in one.refused["wrong"]


def test_parts_that_cut_a_block_stop_the_start(two: Said) -> None:
    """One key head of 64 for each of two ranks: half a block."""
    assert set(two.refused) == {"everything/exl3"}
    assert "qkv_proj (out size of this rank): 64 is not whole 128-blocks" in two.log
