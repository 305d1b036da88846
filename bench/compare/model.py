"""The comparison receipt: what was compared, every boot's value, the tests, the verdict and its scope. Sealed like a receipt."""

from __future__ import annotations

from typing import Literal

import pydantic

from bench.receipt import Tool
from bench.trace import Fact

SCHEMA: Literal["spark-lab/comparison/v1"] = "spark-lab/comparison/v1"
Word = Literal["FASTER", "SLOWER", "NOT SLOWER", "INCONCLUSIVE", "DESCRIPTIVE ONLY"]
Value = str | int | float | bool | None


class BootValue(Fact):
    """One boot: its place in time (0 first), the median of its runs in the endpoint's unit, and the runs themselves."""

    boot: str
    at: int
    value: float
    runs: tuple[float, ...]


class ArmFacts(Fact):
    """An arm: its receipts (id -> seal) and the settings in which it differs from the other arm."""

    name: str
    settings: dict[str, Value]
    receipts: dict[str, str]


class Interval(Fact):
    """A change of B against A as a fraction (0.05: 5 % more); None where unbounded."""

    low: float | None
    high: float | None


class TestResult(Fact):
    """The permutation test. kind free: all boots exchangeable; block: inside blocks. error: of p, when splits were drawn.

    p_holm: p adjusted for all primary endpoints; None for an endpoint that is only guarded.
    """

    kind: Literal["free", "block"]
    splits: int
    p: float
    p_error: float
    p_smallest: float
    p_holm: float | None


class TailResult(Fact):
    """Slow runs of both arms, each run against its own boot's median. verdict worse: see verdict.tail_verdict."""

    slow_share_a: float
    slow_share_b: float
    low_ratio_a: float
    low_ratio_b: float
    p: float
    verdict: Literal["fine", "suspect", "worse"]


class EndpointResult(Fact):
    """One phase and concurrency. change: Hodges-Lehmann estimate; detectable: the change that 80 % of repeats would show
    at the level 0.05, one endpoint tested.

    bootstrap: hierarchical percentile interval, a description that decides nothing. side: medians per arm of figures that explain
    a change (a: baseline, b: candidate).
    """

    name: str
    figure: str
    primary: bool
    a: tuple[BootValue, ...]
    b: tuple[BootValue, ...]
    change: float
    interval: Interval
    bootstrap: Interval
    boot_sd: float | None
    detectable: float | None
    test: TestResult
    tail: TailResult
    side_a: dict[str, float | None]
    side_b: dict[str, float | None]
    verdict: Word
    why: str


class ControlResult(Fact):
    """The A/A control at one endpoint: how far the repeated arm is from itself, and how far it may be."""

    endpoint: str
    change: float
    tolerance: float
    held: bool


class Comparison(Fact):
    """A comparison without its seal. exit_code: 0 no regression, 1 regression, 4 inconclusive or descriptive."""

    receipt: Literal["spark-lab/comparison/v1"] = SCHEMA
    id: str
    created_utc: str
    tool: Tool
    plan: str | None
    kit: str | None
    model: str
    alpha: float
    margin: float
    differs: tuple[str, ...]
    a: ArmFacts
    b: ArmFacts
    endpoints: tuple[EndpointResult, ...]
    control: tuple[ControlResult, ...] | None
    failed_gates: tuple[str, ...]
    notes: tuple[str, ...]
    verdict: str
    scope: str
    exit_code: Literal[0, 1, 4]


class Sealed(Comparison):
    """A sealed comparison."""

    seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")
