"""Open loop: requests arrive when a seeded Poisson process says, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

from bench import workload
from bench.lanes import Lane, Session, Shot, Stage
from bench.phases.decode import line, shot, title
from bench.phases.level import Level
from bench.rounds import Shape
from bench.run import Program

ANSWER_TOKENS = 128
_QUICK_REQUESTS = 8
_LEAD_S = 0.2  # all lanes exist before the first request is due


def due_times(rate_req_s: float, requests: int, seed: int) -> list[float]:
    """Seconds from the start of the round; the gaps are exponential, so their mean is 1 / rate."""
    rng = random.Random(f"arrivals {seed}")
    gaps = [0.0, *(rng.expovariate(rate_req_s) for _ in range(requests - 1))]
    return [round(_LEAD_S + due, 6) for due in itertools.accumulate(gaps)]


async def open_loop(level: Level) -> Program:
    """Prose requests at the wanted rate; every run repeats the same arrival times."""
    load, wanted = workload.load("prose"), level.options.load
    requests = min(wanted.requests, _QUICK_REQUESTS) if level.options.quick else wanted.requests
    runs, max_tokens = level.options.runs_or(1), level.options.tokens_or(ANSWER_TOKENS)
    dues = due_times(wanted.rate_req_s, requests, wanted.seed)

    async def play(session: Session) -> None:
        for number in range(runs):
            shots = [shot(level, load.prompts[i % len(load.prompts)], max_tokens, "arrival", i) for i in range(requests)]
            lanes = [_arriving(replace(one, due_s=due)) for one, due in zip(shots, dues, strict=True)]
            session.report(line(f"{title(level)} run {number + 1}/{runs}", await session.together(*lanes)))

    protocol = level.protocol(load, load.prompts, runs, max_tokens)
    shape = Shape(rate_req_s=wanted.rate_req_s, slo=wanted.slo, seed=wanted.seed)
    return Program(protocol.model_copy(update={"requests": runs * requests, "shape": shape}), play)


def _arriving(one: Shot) -> Lane:
    async def lane(stage: Stage) -> None:
        await asyncio.sleep(max(0.0, (one.due_s or 0.0) - stage.now_s()))
        await stage.send(one)

    return lane
