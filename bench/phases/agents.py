"""Agents: several conversations at once, each of whose turns sends all that was said before and something new."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from bench import workload
from bench.lanes import Lane, Session, Shot, Stage, fresh_salt
from bench.phases.decode import deep_prompts, line, title
from bench.phases.level import Level
from bench.phases.text import words
from bench.rounds import Shape
from bench.run import Program
from bench.workload import Prompt

TURN_TOKENS = 64
_GROWTH = 8  # each turn adds an eighth of the first prompt, as a tool's result would
_WORDS_PER_TOKEN = 0.7


async def agents(level: Level) -> Program:
    """`concurrency` agents with `turns` turns; the first prompt has the level's depth. Answers may end by themselves."""
    load, turns = workload.load("long-context"), level.options.load.turns
    prompts = await deep_prompts(level, load)
    runs, max_tokens = level.options.runs_or(1), level.options.tokens_or(TURN_TOKENS)
    step_tokens = max(1, (level.depth_tokens or 0) // _GROWTH)

    async def play(session: Session) -> None:
        for number in range(runs):
            lanes = [_agent(level, (lane, prompt), max_tokens, step_tokens) for lane, prompt in enumerate(prompts)]
            session.report(line(f"{title(level)} run {number + 1}/{runs}, {turns} turns", await session.together(*lanes)))

    protocol = level.protocol(load, prompts, runs, max_tokens)
    shape = Shape(context_tokens=level.context_tokens, turns=turns, turn_tokens=step_tokens)
    more = {"natural_end": True, "requests": runs * level.concurrency * turns, "shape": shape}
    return Program(protocol.model_copy(update=more), play)


def room_tokens(level: Level, max_tokens: int) -> int:
    """How much of the context a conversation needs beside its first prompt: answers, and what each further turn adds."""
    turns, step = level.options.load.turns, (level.depth_tokens or 0) // _GROWTH
    return turns * max_tokens + (turns - 1) * (step + 16)


def _agent(level: Level, who: tuple[int, Prompt], max_tokens: int, step_tokens: int) -> Lane:
    number, prompt = who

    async def lane(stage: Stage) -> None:
        salt = fresh_salt() if level.options.salted else None
        messages = [{"role": "user", "content": workload.salted(prompt.text, salt)}]
        news = _news(number, round(step_tokens * _WORDS_PER_TOKEN))
        for turn in range(1, level.options.load.turns + 1):
            one = Shot(prompt.id, tuple(messages), max_tokens, f"turn {turn}", number, salt)
            trace = await stage.send(replace(one, target_tokens=level.depth_tokens) if turn == 1 else one)
            messages += [{"role": "assistant", "content": trace.text}, {"role": "user", "content": next(news)}]

    return lane


def _news(lane: int, count: int) -> Iterator[str]:
    """What each further turn adds: the log of another harbour, unlike that of any other lane, and a question."""
    log = words(1000 + lane)
    while True:
        more = " ".join(itertools.islice(log, count))
        yield f"More of the log has arrived.\n{more}\n\nWhat changes in your report?"
