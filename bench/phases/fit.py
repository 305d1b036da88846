"""Prompts of a wanted length in tokens, fitted by the server's own tokenizer, else by what a first request costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.errors import BadRequest, BenchError
from bench.phases.text import compose
from bench.run import Target
from bench.server import prompt_tokens
from bench.stream import INTERRUPTED, Deadlines, Request, stream
from bench.workload import Prompt, made, salted

Count = Callable[[str], Awaitable[int]]
TOLERANCE = 0.005
_TRIES = 8
_SAMPLE_SALT = "0a1b2c3d"
_WORDS_PER_TOKEN = 0.7


async def fitted(count: Count, seed: int, task: Prompt, target_tokens: int) -> Prompt:
    """The task after a log, together as near `target_tokens` as words allow (0: the task alone).

    Raises BadRequest when the task by itself is longer. Stops at half a percent, or when no better number of words is left to try.
    """
    if target_tokens == 0:
        return task
    tried: dict[int, int] = {0: await count(compose(seed, 0, task.text))}
    if tried[0] > target_tokens:
        raise BadRequest(f"a depth of {target_tokens} tokens is less than the task itself has ({tried[0]})\ntry: --depths {tried[0] + 200}")
    at = max(1, round((target_tokens - tried[0]) * _WORDS_PER_TOKEN))
    for _ in range(_TRIES):
        if at in tried:
            break
        tried[at] = await count(compose(seed, at, task.text))
        if abs(tried[at] - target_tokens) <= TOLERANCE * target_tokens:
            break
        at = next_guess(tried, target_tokens)
    best = min(tried, key=lambda n: abs(tried[n] - target_tokens))
    return made(f"{task.id}-log{seed}-{target_tokens}", compose(seed, best, task.text))


def next_guess(tried: dict[int, int], target_tokens: int) -> int:
    """The number of words on the straight line through the two tries nearest the target."""
    near, other = sorted(tried, key=lambda n: abs(tried[n] - target_tokens))[:2]
    slope = (tried[near] - tried[other]) / (near - other)
    return max(1, near + round((target_tokens - tried[near]) / slope)) if slope > 0 else near


def counter(target: Target, deadlines: Deadlines) -> Count:
    """Counts the prompt tokens of a text as it will be sent, salt included."""

    async def count(text: str) -> int:
        sample = salted(text, _SAMPLE_SALT)
        known = await prompt_tokens(target.endpoint, target.model, sample)
        return known if known is not None else await _by_request(target, deadlines, sample)

    return count


async def _by_request(target: Target, deadlines: Deadlines, text: str) -> int:
    trace = await stream(target.endpoint, Request(target.model, text, 1), deadlines)
    if trace.error == INTERRUPTED:
        raise asyncio.CancelledError
    if trace.error:
        raise BenchError(f"a request to learn a prompt's length failed: {trace.error}\ntry: invoke logs, or smaller --depths")
    if trace.usage is None or trace.usage.prompt_tokens is None:
        raise BenchError("the server states no prompt tokens, so a prompt cannot be made to a length\ntry: a phase without depth, as prose")
    return trace.usage.prompt_tokens
