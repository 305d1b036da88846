"""A long prompt beside a running answer: what vLLM's own scheduler does, and what FairScheduler makes of it."""

import itertools
from pathlib import Path

import pytest

pytest.importorskip("vllm")
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm_glm_exl3.fair import FairScheduler, Limits, Pace

from tests.overlay import scheduling
from tests.testbed import model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"))


def crowded(kind: type, folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> scheduling.Bench:
    """An answer has run for ten steps; then a prompt of 1200 tokens comes in; forty more steps."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    bench = scheduling.make(kind, folder)
    if isinstance(bench.scheduler, FairScheduler):
        bench.scheduler.pace.clock = lambda: bench.time
    bench.add("answer", range(3, 35))
    for _ in range(10):
        bench.step()
    bench.steps.clear()
    bench.add("prompt", [5 + number % 400 for number in range(1200)])
    for _ in range(40):
        bench.step()
    return bench


def pieces(bench: scheduling.Bench) -> list[int]:
    return [step.get("prompt", 0) for step in bench.steps]


def test_without_it_the_prompt_fills_every_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = crowded(AsyncScheduler, folder, monkeypatch)
    assert pieces(bench)[:5] == [255, 255, 255, 255, 180]


def test_with_it_the_prompt_takes_its_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = crowded(FairScheduler, folder, monkeypatch, GLM53_FAIR_PREFILL_CHUNK="64", GLM53_FAIR_PREFILL_SHARE="0.3")
    taken = pieces(bench)
    assert max(taken) == 64
    assert all(step["answer"] == 1 for step in bench.steps), "the answer runs in every step"
    carried = [place for place, count in enumerate(taken) if count]
    plain, extra = 0.05, 0.063  # seconds; 64 tokens are 63 more than one per request, and the first piece's cost is not known yet
    between = carried[-1] - carried[3]
    share = (len(carried) - 4) * extra / (between * plain + (len(carried) - 4) * extra)
    assert 0.2 < share < 0.36
    assert len(carried) >= 8


def test_several_prompts_share_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM53_FAIR_PREFILL_CHUNK", "64")
    bench = scheduling.make(FairScheduler, folder)
    bench.scheduler.pace.clock = lambda: bench.time
    bench.add("answer", range(3, 35))
    for _ in range(10):
        bench.step()
    for start, name in enumerate(("one", "two", "three")):
        bench.add(name, [5 + start + number % 400 for number in range(1200)])
    steps = [bench.step() for _ in range(30)]
    assert all(step["answer"] == 1 and sum(step.values()) <= 65 for step in steps)
    assert 5 <= sum(len(step) > 1 for step in steps) <= 15


def test_two_pieces_in_a_step_where_that_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM53_FAIR_PREFILL_CHUNK", "64")
    monkeypatch.setenv("GLM53_FAIR_PREFILL_MAX_CHUNKS", "2")
    bench = scheduling.make(FairScheduler, folder)
    bench.scheduler.pace.clock = lambda: bench.time
    bench.add("answer", range(3, 35))
    for _ in range(10):
        bench.step()
    for start, name in enumerate(("one", "two", "three")):
        bench.add(name, [5 + start + number % 400 for number in range(1200)])
    steps = [bench.step() for _ in range(12)]
    assert {"answer": 1, "one": 64, "two": 64} in steps
    assert max(sum(step.values()) for step in steps) == 129


def test_a_step_with_a_piece_leaves_vllms_own_limits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would stay lowered when the answer has ended."""
    bench = crowded(FairScheduler, folder, monkeypatch, GLM53_FAIR_PREFILL_CHUNK="64")
    assert 64 in pieces(bench)
    scheduler = bench.scheduler
    assert (scheduler.max_num_scheduled_tokens, scheduler.scheduler_config.long_prefill_token_threshold) == (256, 0)
    assert scheduler.adaptive_long_prefill_threshold == scheduling.make(FairScheduler, folder).scheduler.adaptive_long_prefill_threshold


def test_nothing_changes_while_no_answer_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLM53_FAIR_PREFILL_CHUNK", "64")
    bench = scheduling.make(FairScheduler, folder)
    bench.add("prompt", [5] * 700)
    assert [bench.step()["prompt"] for _ in range(3)] == [256, 256, 188]
    assert bench.scheduler.scheduler_config.long_prefill_token_threshold == 0
    assert bench.scheduler.max_num_scheduled_tokens == 256


def test_the_time_that_is_saved_and_spent() -> None:
    """Plain steps of 1 s, then pieces that make them 5 s, at half of the time; all worked out by hand."""
    now = [0.0]
    pace = Pace(Limits(share=0.5, interval_s=10.0), clock=lambda: now[0])
    for now[0] in (0.0, 1.0, 2.0):
        assert pace.step(mixing=False)
    assert (pace.plain_s, pace.saved_s) == (1.0, 0.0)
    found = []
    for now[0] in (3.0, 8.0, 13.0, 18.0):
        assert pace.step(mixing=True)
        found.append((pace.extra_s, pace.saved_s))
    assert found == [pytest.approx(pair) for pair in ((0.0, 0.5), (1.2, 1.8), (2.04, 2.26), (2.628, 2.132))]


def test_no_more_is_saved_than_one_interval_and_nothing_without_need() -> None:
    now = [0.0]
    pace = Pace(Limits(share=1.0, interval_s=2.0), clock=lambda: now[0])
    pace.step(mixing=False)
    now[0] = 100.0
    pace.step(mixing=True)
    assert pace.saved_s == 2.0
    now[0] = 101.0
    pace.step(mixing=False)
    assert pace.saved_s == 0.0


def test_no_wait_is_longer_than_the_interval() -> None:
    now = [0.0]
    pace = Pace(Limits(share=0.01, interval_s=1.0), clock=lambda: now[0])
    carried = []
    for step in range(100):
        if pace.step(mixing=step > 3):
            carried.append(now[0])
        now[0] += 0.1 if not pace.carried else 0.9
    gaps = [later - earlier for earlier, later in itertools.pairwise(carried[4:])]
    assert max(gaps) < 2.1


@pytest.mark.parametrize(("name", "value"), [("CHUNK", "0"), ("SHARE", "1.5"), ("MAX_CHUNKS", "x"), ("MAX_INTERVAL_MS", "-1")])
def test_other_values_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"GLM53_FAIR_PREFILL_{name}='{value}'"):
        Limits.read({f"GLM53_FAIR_PREFILL_{name}": value})
    assert Limits.read({}) == Limits(256, 1, 0.3, 2.0)
