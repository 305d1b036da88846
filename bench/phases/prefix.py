"""The prefix cache: a long prompt sent first, sent again, and sent with an edit at nine tenths of it.

What each request found in the cache is read from the data (CacheProof); `asked` says only what was sent.
"""

from __future__ import annotations

from dataclasses import replace

from bench import workload
from bench.lanes import Session, Shot
from bench.phases.decode import PREFILL_TOKENS, deep_prompts, line, shot, title
from bench.phases.level import Level
from bench.phases.text import edited
from bench.rounds import Shape
from bench.run import Program

EDIT_AT = 0.9


async def prefix(level: Level) -> Program:
    """Three requests a run, one after another: first, repeat, edited. Each run has a salt of its own."""
    load = workload.load("long-context")
    prompts = await deep_prompts(replace(level, concurrency=1), load)
    runs, max_tokens = level.options.runs_or(3), level.options.max_tokens or PREFILL_TOKENS

    async def play(session: Session) -> None:
        for number in range(runs):
            for one in _triple(level, prompts[0], max_tokens):
                run = await session.alone(one)
                session.report(line(f"{title(level)} {one.role}, run {number + 1}/{runs}", [run]))

    protocol = level.protocol(load, prompts, runs, max_tokens)
    more = {"requests": 3 * runs, "shape": Shape(context_tokens=level.context_tokens)}
    return Program(protocol.model_copy(update=more), play)


def _triple(level: Level, prompt: workload.Prompt, max_tokens: int) -> list[Shot]:
    first = replace(shot(level, prompt, max_tokens, "first"), target_tokens=level.depth_tokens)
    text = str(first.content)
    return [first, replace(first, role="repeat"), replace(first, role="edited", content=edited(text, EDIT_AT), target_tokens=None)]
