"""The shipped workloads, and a workload whose text was changed."""

import hashlib
from pathlib import Path

import pytest

from bench import workload
from bench.errors import BadRequest
from bench.phases.names import DECODE
from bench.request import Dialect, Request


@pytest.mark.parametrize("phase", workload.PHASES)
def test_every_phase_loads_and_its_hash_is_right(phase: str) -> None:
    load = workload.load(phase)
    assert load.phase == phase
    for prompt in load.prompts:
        assert prompt.sha256 == hashlib.sha256(prompt.text.encode("utf-8")).hexdigest()


@pytest.mark.parametrize("phase", DECODE)
def test_every_lane_up_to_eight_has_a_text_of_its_own(phase: str) -> None:
    prompts = workload.load(phase).prompts
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) >= 8


def test_only_short_code_may_end_by_itself() -> None:
    assert [phase for phase in workload.PHASES if workload.load(phase).natural_end] == ["short-code"]


def test_a_changed_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (workload.FOLDER / "prose.toml").read_text().replace("hash map", "hash table")
    (tmp_path / "prose.toml").write_text(text)
    monkeypatch.setattr(workload, "FOLDER", tmp_path)
    with pytest.raises(BadRequest, match="its text has sha256"):
        workload.load("prose")


def test_unknown_phase() -> None:
    with pytest.raises(BadRequest, match="known: prose, structured, code, json, short-code"):
        workload.load("poetry")


def test_the_warm_up_is_measured_nowhere() -> None:
    texts = {prompt.text for phase in workload.PHASES for prompt in workload.load(phase).prompts}
    assert workload.warm_up().text not in texts


def test_salt_stands_in_front() -> None:
    prompt = workload.load("prose").prompts[0]
    assert workload.salted(prompt.text, "0a1b2c3d").startswith("[0a1b2c3d] Explain")
    assert workload.salted(prompt.text, None) == prompt.text


@pytest.mark.parametrize(("dialect", "asked"), [("vllm", True), ("llamacpp", True), ("openai", None)])
def test_answers_that_must_reach_the_limit_are_asked_to(dialect: Dialect, asked: bool | None) -> None:
    forced = Request("m", "x", 8, to_the_limit=True)
    assert forced.wire(dialect).get("ignore_eos") is asked
    assert "ignore_eos" not in Request("m", "x", 8).wire(dialect)
