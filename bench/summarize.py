"""Figures over the runs of one receipt. Pure: the same runs always give the same summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bench.counters import Counters, delta
from bench.measure import RequestMetrics, quantile
from bench.trace import Fact


class Spread(Fact):
    """n values: median, extremes and median absolute deviation, in the unit of the field that holds them."""

    n: int
    median: float
    min: float
    max: float
    mad: float


class Acceptance(Fact):
    """Speculative decoding over all runs. acceptance_rate = accepted / draft tokens; acceptance_length = 1 + accepted / drafts.

    per_position[i] = drafts whose token i was accepted / drafts, for every position the server reports.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float
    acceptance_length: float
    per_position: tuple[float, ...]


class Summary(Fact):
    """Over the runs that ended without an error. None: no run gave the figure."""

    runs: int
    failed_runs: int
    tokens: int | None
    decode_tok_s: Spread | None
    ttft_s: Spread | None
    e2el_s: Spread | None
    tpot_s: Spread | None
    itl_p99_s: Spread | None
    prefill_tok_s: Spread | None
    cached_share: float | None
    token_sources: tuple[str, ...]
    acceptance: Acceptance | None


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are known; None when none is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    middle = statistics.median(known)
    deviations = [abs(value - middle) for value in known]
    return Spread(n=len(known), median=middle, min=known[0], max=known[-1], mad=quantile(deviations, 0.5) or 0.0)


def acceptance(readings: Sequence[tuple[Counters | None, Counters | None]]) -> Acceptance | None:
    """Acceptance from (before, after) counter readings; None when the server offers none or nothing was drafted."""
    moves = [delta(before, after) for before, after in readings]
    complete = [m for m in moves if m.drafts is not None and m.draft_tokens is not None and m.accepted_tokens is not None]
    drafts = sum(m.drafts or 0 for m in complete)
    draft_tokens = sum(m.draft_tokens or 0 for m in complete)
    accepted = sum(m.accepted_tokens or 0 for m in complete)
    if not drafts or not draft_tokens:
        return None
    columns = [m.accepted_per_position or () for m in complete]
    width = max((len(column) for column in columns), default=0)
    per_position = [sum(column[i] for column in columns if i < len(column)) / drafts for i in range(width)]
    return Acceptance(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        acceptance_rate=accepted / draft_tokens,
        acceptance_length=1 + accepted / drafts,
        per_position=tuple(per_position),
    )


def summarize(metrics: Sequence[RequestMetrics], failed_runs: int, readings: Sequence[tuple[Counters | None, Counters | None]]) -> Summary:
    """The summary of the runs without an error, whose metrics and counter readings are given, and how many had one."""
    tokens = [m.n_tokens for m in metrics]
    cached = [m.cached_tokens for m in metrics if m.cached_tokens is not None and m.prompt_tokens]
    prompt = [m.prompt_tokens for m in metrics if m.cached_tokens is not None and m.prompt_tokens]
    return Summary(
        runs=len(metrics),
        failed_runs=failed_runs,
        tokens=sum(n for n in tokens if n is not None) if tokens and None not in tokens else None,
        decode_tok_s=spread(m.decode_tok_s for m in metrics),
        ttft_s=spread(m.ttft_s for m in metrics),
        e2el_s=spread(m.e2el_s for m in metrics),
        tpot_s=spread(m.tpot_s for m in metrics),
        itl_p99_s=spread(m.itl_p99_s for m in metrics),
        prefill_tok_s=spread(m.prefill_tok_s for m in metrics),
        cached_share=sum(cached) / sum(prompt) if prompt else None,
        token_sources=tuple(sorted({m.token_source for m in metrics if m.token_source})),
        acceptance=acceptance(readings),
    )
