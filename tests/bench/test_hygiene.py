"""The client's health: real stops of a real event loop are seen; the judgement is by hand-written numbers."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine

import pytest

from bench.hygiene import READS, Hygiene, Limits, Watch, judge

SOUND = Hygiene(
    wall_s=10, cpu_s=4, cpu_wait_s=0.5, busy_share=0.45, lag_samples=1000, lag_p99_s=0.0012, lag_max_s=0.02, gc_pauses=3,
    gc_pause_max_s=0.004, gc_pause_total_s=0.01, clock_step_s=0.00001, reads=5000, full_reads=0, events=5000,
)  # fmt: skip
PATIENT = Limits(lag_p99_s=9, lag_max_s=9, busy_share=99, gc_pause_s=9)  # a test machine may be busy with something else


def test_a_sound_client_is_not_behind() -> None:
    assert (judge(SOUND).behind, judge(SOUND).reason) == (False, None)
    unknown = SOUND.model_copy(update={"lag_p99_s": None, "lag_max_s": None, "cpu_wait_s": None})
    assert not judge(unknown).behind


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("lag_p99_s", 0.0262, "waited 26.2 ms (p99), limit 25"),
        ("lag_max_s", 0.25, "waited 250 ms (longest), limit 200"),
        ("busy_share", 0.93, "busy or waiting for a core 93 % of the time, limit 90"),
        ("gc_pause_max_s", 0.08, "stopped the client for 80 ms, limit 50"),
        ("clock_step_s", 1.5, "the wall clock jumped by 1.500 s, limit 0.1"),
        ("full_reads", 2, "2 reads filled the buffer"),
    ],
)
def test_each_limit_makes_it_behind_and_is_named(field: str, value: float, words: str) -> None:
    found = judge(SOUND.model_copy(update={field: value}))
    assert found.behind
    assert found.reason is not None
    assert words in found.reason
    assert ";" not in found.reason


def test_two_reasons_are_both_named() -> None:
    found = judge(SOUND.model_copy(update={"lag_max_s": 0.25, "clock_step_s": 1.5}))
    assert found.reason == "a ready socket waited 250 ms (longest), limit 200; the wall clock jumped by 1.500 s, limit 0.1"


def watched(during: Callable[[], Coroutine[None, None, None]], limits: Limits | None = None) -> Hygiene:
    async def go() -> Hygiene:
        with Watch(limits) as watch:
            await during()
        return watch.report()

    return asyncio.run(go())


def test_a_blocked_loop_is_seen_once() -> None:
    async def block() -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.3)
        await asyncio.sleep(0.1)

    seen = watched(block)
    assert seen.lag_max_s is not None
    assert 0.28 < seen.lag_max_s < 3
    assert seen.lag_samples < 40  # 0.2 s of 10 ms ticks and one long one: the stop is not counted as thirty
    assert seen.behind
    assert "longest" in str(seen.reason)


def test_a_stop_right_before_the_end_is_seen() -> None:
    async def block() -> None:
        await asyncio.sleep(0.02)
        time.sleep(0.3)

    assert watched(block).behind


def test_burning_the_core_is_seen() -> None:
    async def burn() -> None:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            await asyncio.sleep(0)

    seen = watched(burn)
    assert seen.busy_share > 0.9
    assert "busy or waiting for a core" in str(seen.reason)


def test_an_idle_client_is_sound() -> None:
    seen = watched(lambda: asyncio.sleep(0.3), PATIENT)
    assert (seen.behind, seen.full_reads, seen.events) == (False, 0, 0)
    assert 0.3 <= seen.wall_s < 2
    assert seen.cpu_s < 0.2
    assert 5 <= seen.lag_samples <= 31


def test_collections_are_timed() -> None:
    async def collect() -> None:
        gc.collect()

    seen = watched(collect, PATIENT)
    assert seen.gc_pauses >= 1
    assert 0 < seen.gc_pause_max_s <= seen.gc_pause_total_s
    assert not any(getattr(callback, "__self__", None).__class__ is Watch for callback in gc.callbacks)


def test_a_step_of_the_wall_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time

    async def step() -> None:
        await asyncio.sleep(0.05)
        monkeypatch.setattr(time, "time", lambda: real() + 3)
        await asyncio.sleep(0.05)

    seen = watched(step, PATIENT)
    assert seen.clock_step_s == pytest.approx(3, abs=0.05)
    assert "wall clock jumped by" in str(seen.reason)


def test_reads_are_differences() -> None:
    async def read() -> None:
        READS.reads += 3
        READS.full_reads += 1
        READS.events += 7

    READS.reads += 100
    seen = watched(read, PATIENT)
    assert (seen.reads, seen.full_reads, seen.events) == (3, 1, 7)
    assert "1 reads filled the buffer" in str(seen.reason)


def test_without_a_loop_the_lag_is_unknown() -> None:
    with Watch(PATIENT) as watch:
        time.sleep(0.01)
    seen = watch.report()
    assert (seen.lag_samples, seen.lag_p99_s, seen.lag_max_s, seen.behind) == (0, None, None, False)
