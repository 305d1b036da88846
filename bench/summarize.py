"""Figures over the runs of one receipt. Pure: the same runs always give the same summary."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cells import Cell
from bench.counters import Counters, delta
from bench.goodput import Goodput
from bench.groups import GroupMetrics
from bench.interference import Interference
from bench.measure import RequestMetrics
from bench.spread import Spread, spread
from bench.trace import Fact

__all__ = ["Acceptance", "GoodputSummary", "GroupSummary", "MixedSummary", "Spread", "Summary", "spread", "summarize"]


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


class GroupSummary(Fact):
    """Rounds of several lanes at once; each spread is over the rounds, its fields as in GroupMetrics. Never a sum of stream rates."""

    rounds: int
    lanes: int
    wall_tok_s: Spread | None
    steady_tok_s: Spread | None
    steady_s: Spread | None
    ttft_p50_s: Spread | None
    ttft_max_s: Spread | None
    fairness: Spread | None
    preemptions: int | None


class MixedSummary(Fact):
    """Rounds with a newcomer among decoding incumbents; each spread is over the rounds, its fields as in Interference."""

    rounds: int
    incumbents: int
    before_tok_s: Spread | None
    during_tok_s: Spread | None
    after_tok_s: Spread | None
    during_share: Spread | None
    worst_gap_s: Spread | None
    newcomer_ttft_s: Spread | None
    newcomer_slowdown: Spread | None


class GoodputSummary(Fact):
    """Open-loop rounds; each spread is over the rounds, its fields as in Goodput. lateness_max_s: the latest dispatch of all."""

    rounds: int
    requests: int
    good: int
    attainment: Spread | None
    goodput_req_s: Spread | None
    completed_req_s: Spread | None
    offered_req_s: Spread | None
    output_tok_s: Spread | None
    lateness_max_s: float | None
    in_flight_max: int


class Summary(Fact):
    """Over the runs that ended without an error. None: no run gave the figure, or the phase has none.

    decode_tok_s is that of single requests, also where several ran at once; the group's own rates are in `group`.
    """

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
    group: GroupSummary | None = None
    cells: tuple[Cell, ...] | None = None
    mixed: MixedSummary | None = None
    goodput: GoodputSummary | None = None


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


def summarize_groups(groups: Sequence[GroupMetrics], preemptions: int | None) -> GroupSummary | None:
    """Over the rounds; None without one. preemptions: how far the server's counter moved in all rounds."""
    if not groups:
        return None
    names = ("wall_tok_s", "steady_tok_s", "steady_s", "ttft_p50_s", "ttft_max_s", "fairness")
    spreads = {name: spread(getattr(group, name) for group in groups) for name in names}
    return GroupSummary(rounds=len(groups), lanes=max(group.lanes for group in groups), preemptions=preemptions, **spreads)


def summarize_mixed(rounds: Sequence[Interference]) -> MixedSummary | None:
    """Over the rounds; None without one."""
    if not rounds:
        return None
    names = [name for name in MixedSummary.model_fields if name not in ("rounds", "incumbents")]
    spreads = {name: spread(getattr(one, name) for one in rounds) for name in names}
    return MixedSummary.model_validate({"rounds": len(rounds), "incumbents": max(one.incumbents for one in rounds), **spreads})


def summarize_goodput(rounds: Sequence[Goodput]) -> GoodputSummary | None:
    """Over the rounds; None without one."""
    if not rounds:
        return None
    names = ("attainment", "goodput_req_s", "completed_req_s", "offered_req_s", "output_tok_s")
    latest = [one.lateness_s.max for one in rounds if one.lateness_s]
    return GoodputSummary(
        rounds=len(rounds),
        requests=sum(one.requests for one in rounds),
        good=sum(one.good for one in rounds),
        lateness_max_s=max(latest, default=None),
        in_flight_max=max(one.in_flight_max for one in rounds),
        **{name: spread(getattr(one, name) for one in rounds) for name in names},
    )
