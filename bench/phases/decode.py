"""Decode phases: every lane sends one prompt at the same moment, round after round. Also at a depth, and as a cold prefill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench import workload
from bench.lanes import Lane, Session, Shot, Stage, fresh_salt
from bench.phases.fit import counter, fitted
from bench.phases.level import Level
from bench.receipt import Run
from bench.rounds import Shape
from bench.run import Program
from bench.workload import Prompt

PREFILL_TOKENS = 8


async def decode(level: Level) -> Program:
    """Prompts from the phase's file, lane by lane; more lanes than prompts use a text twice, with another salt."""
    load = workload.load(level.phase)
    prompts = [load.prompts[lane % len(load.prompts)] for lane in range(level.concurrency)]
    return _program(level, load, prompts, level.options.runs_or(5), level.options.tokens_or(load.max_tokens))


async def long_context(level: Level) -> Program:
    """Decode after a prompt of the level's depth."""
    load = workload.load("long-context")
    prompts = await deep_prompts(level, load)
    return _program(level, load, prompts, level.options.runs_or(3), level.options.tokens_or(load.max_tokens))


async def prefill(level: Level) -> Program:
    """The same prompts with a very short answer: what is measured is the time to its first token."""
    load = workload.load("long-context")
    prompts = await deep_prompts(level, load)
    return _program(level, load, prompts, level.options.runs_or(3), level.options.max_tokens or PREFILL_TOKENS)


async def deep_prompts(level: Level, load: workload.Workload) -> list[Prompt]:
    """One prompt of the level's depth for each lane, each with a log of its own."""
    count = counter(level.target, level.options.deadlines)
    lanes = range(level.concurrency)
    return [await fitted(count, lane + 1, load.prompts[0], level.depth_tokens or 0) for lane in lanes]


def _program(level: Level, load: workload.Workload, prompts: Sequence[Prompt], runs: int, max_tokens: int) -> Program:
    target = level.depth_tokens or None

    async def play(session: Session) -> None:
        for number in range(runs):
            shots = [replace(shot(level, prompt, max_tokens, lane=lane), target_tokens=target) for lane, prompt in enumerate(prompts)]
            head = f"{title(level)} run {number + 1}/{runs}"
            if len(shots) == 1:
                session.report(line(head, [await session.alone(shots[0])]))
            else:
                session.report(line(head, await session.together(*[sending(one) for one in shots])))

    protocol = level.protocol(load, prompts, runs, max_tokens)
    shape = None if level.depth_tokens is None else Shape(context_tokens=level.context_tokens)
    return Program(protocol.model_copy(update={"shape": shape}), play)


def shot(level: Level, prompt: Prompt, max_tokens: int, role: str = "lane", lane: int = 0) -> Shot:
    """A request for this prompt, with a fresh salt unless the caller wants none."""
    salt = fresh_salt() if level.options.salted else None
    return Shot(prompt.id, workload.salted(prompt.text, salt), max_tokens, role, lane, salt)


def sending(one: Shot) -> Lane:
    """A lane that sends one request."""

    async def lane(stage: Stage) -> None:
        await stage.send(one)

    return lane


def title(level: Level) -> str:
    """The level as progress lines call it: `prose x4`, `prefill @8192`."""
    lanes = f" x{level.concurrency}" if level.concurrency > 1 else ""
    return f"{level.phase}{lanes}" + ("" if level.depth_tokens is None else f" @{level.depth_tokens}")


def line(head: str, runs: Sequence[Run]) -> str:
    """One line of progress about requests that have just ended."""
    errors = [run.trace.error for run in runs if run.trace.error]
    if errors:
        return f"{head}: {errors[0]}"
    counts = sorted({run.metrics.n_tokens for run in runs if run.metrics.n_tokens is not None})
    tokens = "-".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "unknown"
    each = "" if len(runs) == 1 else f"{len(runs)} x "
    rates = [run.metrics.decode_tok_s for run in runs]
    firsts = [run.metrics.ttft_s for run in runs]
    return f"{head}: {each}{tokens} tokens, decode {_range(rates, '{:.1f}', 1)} tok/s, TTFT {_range(firsts, '{:.0f}', 1000)} ms"


def _range(values: Sequence[float | None], form: str, scale: float) -> str:
    known = sorted(value * scale for value in values if value is not None)
    return "-".join(dict.fromkeys(form.format(v) for v in (known[0], known[-1]))) if known else "unknown"
