"""A scheduler that lets long prompts in beside running answers, at a bounded share of the time.

    vllm serve ... --scheduler-cls vllm_glm_exl3.fair.FairScheduler

vLLM either fills every step with as much of a prompt as fits (running answers then come 10 to 36 times slower on GB10, by the public
recipe's figures) or is told a fixed piece. Here, while an answer is running, prompt tokens come in pieces, and a step with a piece is
only taken when the time it adds has been saved up: GLM53_FAIR_PREFILL_SHARE of what has passed. Nothing changes while no answer runs.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

SMOOTH = 0.3  # weight of the newest step in the running means


@dataclass(frozen=True)
class Limits:
    """`chunk`: prompt tokens of one request in a step; `chunks`: requests that may have such a piece in one step; `share`: of the time."""

    chunk: int = 256
    chunks: int = 1
    share: float = 0.3
    interval_s: float = 2.0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Limits":
        """GLM53_FAIR_PREFILL_CHUNK, _MAX_CHUNKS, _SHARE, _MAX_INTERVAL_MS. Raises ValueError, naming the variable."""
        return cls(
            chunk=int(_number(environment, "CHUNK", 256, 1, 8191)),
            chunks=int(_number(environment, "MAX_CHUNKS", 1, 1, 16)),
            share=_number(environment, "SHARE", 0.3, 0.01, 1.0),
            interval_s=_number(environment, "MAX_INTERVAL_MS", 2000, 1, 600000) / 1000,
        )


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    name = f"GLM53_FAIR_PREFILL_{name}"
    try:
        value = float(environment.get(name) or default)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ValueError(f"{name}={environment.get(name)!r}: must be a number from {least:g} to {most:g}")
    return value


@dataclass
class Pace:
    """When a step may carry prompt tokens. Times in seconds; `saved` grows by share of the time that passes."""

    limits: Limits
    clock: Callable[[], float] = time.monotonic
    saved_s: float = 0.0
    plain_s: float = 0.0  # mean length of a step without prompt tokens
    extra_s: float = 0.0  # mean of what a piece adds to one
    last: float = field(default=-1.0)
    last_piece: float = field(default=-1.0)
    carried: bool = False

    def step(self, mixing: bool) -> bool:
        """A step is about to be scheduled; `mixing`: prompts wait beside running answers. True: it may carry a piece."""
        now = self.clock()
        self._measure(now - self.last if self.last >= 0 else 0.0, mixing)
        self.last = now
        if not mixing:
            self.carried, self.last_piece = False, now
            return True
        self.carried = self.saved_s >= self.extra_s or now - self.last_piece >= self.limits.interval_s
        if self.carried:
            self.saved_s, self.last_piece = max(0.0, self.saved_s - self.extra_s), now
        return self.carried

    def _measure(self, took_s: float, mixing: bool) -> None:
        """The step that has just passed took `took_s`."""
        if self.carried:
            self.extra_s += SMOOTH * (max(0.0, took_s - self.plain_s) - self.extra_s)
        elif self.plain_s:
            self.plain_s += SMOOTH * (took_s - self.plain_s)
        else:
            self.plain_s = took_s
        self.saved_s = min(self.saved_s + self.limits.share * took_s, self.limits.interval_s) if mixing else 0.0


class FairScheduler(AsyncScheduler):
    """vLLM's asynchronous scheduler, told step by step how much of the prompts to take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_num_scheduled_tokens: int
        self.adaptive_long_prefill_threshold: bool
        self.fair_limits = Limits.read(os.environ)
        self.pace = Pace(self.fair_limits)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        answers = [request for request in self.running if not request.is_prefill_chunk]
        prompts = len(self.running) - len(answers) + len(self.waiting)
        mixing = bool(answers and prompts)
        if not self.pace.step(mixing):
            self.prefill_capacity_bound = False  # else vLLM would not hold the prompts back
            return super().schedule(throttle_prefills=True)
        return self._piece(answers, throttle_prefills) if mixing else super().schedule(throttle_prefills)

    def _piece(self, answers: list[Any], throttle_prefills: bool) -> Any:
        """One step with pieces of prompts: vLLM's own limits, lowered for this call."""
        config, budget = self.scheduler_config, self.max_num_scheduled_tokens
        threshold, adaptive = config.long_prefill_token_threshold, self.adaptive_long_prefill_threshold
        chunk = max(self.fair_limits.chunk, self.block_size if self.need_mamba_block_aligned_split else 0)
        started = len(self.running) - len(answers)
        due = sum(request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens for request in answers)
        config.long_prefill_token_threshold, self.adaptive_long_prefill_threshold = chunk, False
        self.max_num_scheduled_tokens = min(budget, due + chunk * max(self.fair_limits.chunks, started))
        try:
            return super().schedule(throttle_prefills)
        finally:
            config.long_prefill_token_threshold, self.adaptive_long_prefill_threshold = threshold, adaptive
            self.max_num_scheduled_tokens = budget
