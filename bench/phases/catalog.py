"""All phases by name, and which levels a request for one makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.errors import BadRequest
from bench.phases import agents, decode, mixed, open_loop, prefix
from bench.phases.level import Level, depths, refuse_too_deep
from bench.phases.names import DECODE, DEEP
from bench.run import Options, Program, Target
from bench.server import context_tokens

Ladder = Literal["none", "zero", "all", "middle"]


@dataclass(frozen=True)
class Kind:
    """How a phase is made. ladder: which depths it has when none are named: none, all with 0, all, or the middle one.

    concurrency: lanes when none are named; None where lanes mean nothing.
    """

    build: Callable[[Level], Awaitable[Program]]
    ladder: Ladder = "none"
    concurrency: int | None = 1
    answer_tokens: int = 400


KINDS: dict[str, Kind] = {
    **{phase: Kind(decode.decode) for phase in DECODE},
    "long-context": Kind(decode.long_context, "zero", answer_tokens=200),
    "prefill": Kind(decode.prefill, "all", answer_tokens=decode.PREFILL_TOKENS),
    "prefix": Kind(prefix.prefix, "middle", concurrency=None, answer_tokens=decode.PREFILL_TOKENS),
    "mixed": Kind(mixed.mixed, "middle", concurrency=2, answer_tokens=decode.PREFILL_TOKENS),
    "agents": Kind(agents.agents, "middle", concurrency=2, answer_tokens=agents.TURN_TOKENS),
    "open-loop": Kind(open_loop.open_loop, concurrency=None, answer_tokens=open_loop.ANSWER_TOKENS),
}


def refuse_useless(phase: str, lanes: Sequence[int], wanted: Sequence[int] | None) -> None:
    """Raises BadRequest for a concurrency or depths that this phase would leave unused."""
    kind = KINDS[phase]
    if lanes and kind.concurrency is None:
        raise BadRequest(f"phase {phase} has no lanes\ntry: without --concurrency" + (", with --rate" if phase == "open-loop" else ""))
    if wanted is not None and kind.ladder == "none":
        raise BadRequest(f"phase {phase} has no depth\ntry: without --depths, or a phase that has one: {', '.join(DEEP)}")


async def levels(phase: str, target: Target, options: Options, lanes: Sequence[int], wanted: Sequence[int] | None) -> list[Level]:
    """One level for each concurrency and depth. lanes empty, wanted None: the phase's own. Raises BadRequest for what cannot fit."""
    kind = KINDS[phase]
    counts = [1] if kind.concurrency is None else list(lanes) or [kind.concurrency]
    if kind.ladder == "none":
        return [Level(phase, target, options, count) for count in counts]
    context = await context_tokens(target.endpoint, target.model)
    found = tuple(wanted) if wanted is not None else _ladder(kind, context, options)
    made = [Level(phase, target, options, count, depth, context) for count in counts for depth in found]
    for level in made:
        refuse_too_deep([level.depth_tokens or 0], context, _room(kind, level))
    return made


def _room(kind: Kind, level: Level) -> int:
    """Tokens that must be free beside the prompt."""
    answer = level.options.tokens_or(kind.answer_tokens)
    return agents.room_tokens(level, answer) if kind.build is agents.agents else answer


def _ladder(kind: Kind, context: int | None, options: Options) -> tuple[int, ...]:
    found = depths(context, options.tokens_or(kind.answer_tokens), options.quick)
    if kind.ladder == "zero":
        return (0, *found)
    return found if kind.ladder == "all" else (found[min(1, len(found) - 1) if found[0] < 8192 else 0],)
