"""What a tool reports against what is true. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bench.accuracy.truth import Group, group, mean, truth
from bench.peers.peer import Reported
from bench.scripted import Sent
from bench.trace import Fact

Figure = Literal["ttft_ms", "tpot_ms", "tokens", "decode_tok_s", "output_tok_s"]
FIGURES: tuple[Figure, ...] = ("ttft_ms", "tpot_ms", "tokens", "decode_tok_s", "output_tok_s")
# Largest relative error that still counts as right. A few ms of 200 go into a tool's connecting, and a few of 2,500 into its
# beginning and ending; a time per token and a count have no such excuse.
RIGHT: dict[Figure, float] = {"ttft_ms": 0.10, "tpot_ms": 0.02, "tokens": 0.005, "decode_tok_s": 0.02, "output_tok_s": 0.05}


class Actual(Fact):
    """The truth in the words of Reported. tpot_per_step_ms: the same per token that came after the first chunk instead of per
    token that came after the first token: both are in use, so a tool is right by either."""

    ttft_ms: float
    tpot_ms: float
    tpot_per_step_ms: float
    tokens: float
    decode_tok_s: float
    output_tok_s: float


class Verdict(Fact):
    """One figure: what was said, what is true, the relative error, and whether that is wrong. None: the tool says nothing."""

    figure: Figure
    said: float | None
    true: float
    error: float | None
    wrong: bool


def what_is_true(sents: Sequence[Sent]) -> Actual:
    """Of these requests. Raises ValueError where one has no token."""
    whole: Group = group(sents)
    each = [truth(sent) for sent in sents]
    steps = [1000 / one.decode_tok_s for one in each if one.decode_tok_s]
    assert whole.tpot_mean_s is not None
    assert whole.decode_tok_s is not None
    return Actual(
        ttft_ms=whole.ttft_mean_s * 1000,
        tpot_ms=whole.tpot_mean_s * 1000,
        tpot_per_step_ms=mean(steps) or whole.tpot_mean_s * 1000,
        tokens=whole.n_tokens / whole.streams,
        decode_tok_s=whole.decode_tok_s,
        output_tok_s=whole.output_tok_s,
    )


def judge(said: Reported, true: Actual) -> tuple[Verdict, ...]:
    return tuple(_verdict(figure, getattr(said, figure), true) for figure in FIGURES)


def _verdict(figure: Figure, said: float | None, true: Actual) -> Verdict:
    truths = [getattr(true, figure)] + ([true.tpot_per_step_ms] if figure == "tpot_ms" else [])
    if said is None:
        return Verdict(figure=figure, said=None, true=truths[0], error=None, wrong=False)
    right = min(truths, key=lambda value: abs(said / value - 1))
    error = said / right - 1
    return Verdict(figure=figure, said=said, true=right, error=round(error, 5), wrong=abs(error) > RIGHT[figure])
