"""Shared by the benchmark's tests."""

import pytest

from bench import lanes
from bench.hygiene import Limits


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run on busy machines: a client that was late there is no fault, unless a test is about just that."""
    wide = Limits(lag_p99_s=60, lag_max_s=60, busy_share=1e9, gc_pause_s=60, clock_step_s=60, full_reads=10**9)
    monkeypatch.setattr(lanes, "LIMITS", wide)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "API_KEY", "GLM53_BENCH_BASE"):
        monkeypatch.delenv(name, raising=False)
