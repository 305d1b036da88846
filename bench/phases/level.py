"""What one receipt is about: a phase at one concurrency and one prompt depth. And the ladder of depths for a context length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import BadRequest
from bench.receipt import Protocol, Sent
from bench.run import Options, Target
from bench.workload import Prompt, Workload, warm_up

LADDER = (8192, 32768, 98304)
QUICK_DEPTH = 768  # what a 135M model on one CPU thread reads in some seconds
_MARGIN_TOKENS = 64  # chat template and salt


@dataclass(frozen=True)
class Level:
    """A phase to be measured once. depth_tokens None: the phase has no long prompt. context_tokens: the server's, None: unknown."""

    phase: str
    target: Target
    options: Options
    concurrency: int = 1
    depth_tokens: int | None = None
    context_tokens: int | None = None

    def protocol(self, load: Workload, prompts: Sequence[Prompt], runs: int, max_tokens: int) -> Protocol:
        """What all phases share; the caller adds what is its own with model_copy."""
        return Protocol(
            phase=self.phase,
            prompts=tuple(Sent(id=prompt.id, sha256=prompt.sha256) for prompt in prompts),
            runs=runs,
            max_tokens=max_tokens,
            temperature=0.0,
            top_p=1.0,
            thinking=False,
            salted=self.options.salted,
            warm_up=warm_up().id,
            concurrency=self.concurrency,
            dialect=self.target.endpoint.dialect,
            natural_end=load.natural_end,
            depth_tokens=self.depth_tokens,
        )


def depths(context_tokens: int | None, answer_tokens: int, quick: bool) -> tuple[int, ...]:
    """The usual depths that fit the context; where none does, a quarter, a half and all of what fits. Raises BadRequest if unknown."""
    if context_tokens is None:
        raise BadRequest("the server does not state its context length\ntry: --depths 8192,32768 (prompt tokens)")
    room = context_tokens - answer_tokens - _MARGIN_TOKENS
    if quick:
        room = min(room, QUICK_DEPTH)
    fitting = tuple(depth for depth in LADDER if depth <= room)
    return fitting or tuple(room * part // 4 for part in (1, 2, 4))


def refuse_too_deep(wanted: Sequence[int], context_tokens: int | None, answer_tokens: int) -> None:
    """Raises BadRequest when a prompt of that length and its answer do not fit the context (where it is known)."""
    too_deep = [depth for depth in wanted if context_tokens and depth + answer_tokens > context_tokens]
    if too_deep:
        what = f"{too_deep[0]} prompt tokens and {answer_tokens} of answer do not fit the server's context of {context_tokens}"
        raise BadRequest(f"{what}\ntry: --depths up to {max(0, context_tokens or 0) - answer_tokens}, or a lower --max-tokens")
