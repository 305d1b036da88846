"""A newcomer with a long prompt among lanes that decode: what happens to both."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench import workload
from bench.lanes import Lane, Session, Stage
from bench.phases.decode import PREFILL_TOKENS, deep_prompts, line, shot, title
from bench.phases.level import Level
from bench.rounds import Shape
from bench.run import Program
from bench.workload import Prompt

AFTER_CHUNKS = 32  # the incumbents are well under way when each has had this many chunks


async def mixed(level: Level) -> Program:
    """Per run: the newcomer's prompt alone on the idle server, then the same (with another salt) among `concurrency` incumbents."""
    prose, report = workload.load("prose"), workload.load("long-context")
    incumbents = [prose.prompts[lane % len(prose.prompts)] for lane in range(level.concurrency)]
    newcomer = (await deep_prompts(replace(level, concurrency=1), report))[0]
    runs, max_tokens = level.options.runs_or(2), level.options.max_tokens or (200 if level.options.quick else 400)

    async def play(session: Session) -> None:
        for number in range(runs):
            head = f"{title(level)} run {number + 1}/{runs}"
            alone = replace(shot(level, newcomer, PREFILL_TOKENS, "newcomer alone"), target_tokens=level.depth_tokens)
            session.report(line(f"{head}, newcomer alone", [await session.alone(alone)]))
            session.report(line(f"{head}, together", await session.together(*_lanes(level, incumbents, newcomer, max_tokens))))

    protocol = level.protocol(prose, [*incumbents, newcomer], runs, max_tokens)
    shape = Shape(context_tokens=level.context_tokens, newcomer_tokens=level.depth_tokens, after_chunks=_after(max_tokens))
    return Program(protocol.model_copy(update={"requests": runs * (level.concurrency + 2), "shape": shape}), play)


def _after(max_tokens: int) -> int:
    return min(AFTER_CHUNKS, max(1, max_tokens // 4))


def _lanes(level: Level, incumbents: list[Prompt], newcomer: Prompt, max_tokens: int) -> list[Lane]:
    under_way = [asyncio.Event() for _ in incumbents]

    def incumbent(number: int) -> Lane:
        async def lane(stage: Stage) -> None:
            seen = 0

            def listen(kind: str, text: str) -> None:
                nonlocal seen
                seen += 1
                if seen >= _after(max_tokens):
                    under_way[number].set()

            try:
                await stage.send(shot(level, incumbents[number], max_tokens, "incumbent", number), listen)
            finally:
                under_way[number].set()  # one that failed or ended early must not hold the newcomer back

        return lane

    async def late(stage: Stage) -> None:
        for event in under_way:
            await event.wait()
        one = shot(level, newcomer, PREFILL_TOKENS, "newcomer", len(incumbents))
        await stage.send(replace(one, target_tokens=level.depth_tokens))

    return [*map(incumbent, range(len(incumbents))), late]
