"""Requests that ran at the same time, on one clock: group figures from traces and start times. Pure functions.

A chunk's tokens count at the chunk's arrival: a token whose own time is unknown is dated by the chunk that carries it. A span (a, b]
holds the chunks that arrived after a and not after b, so a chunk cut by an end of the span counts wholly on the side where it
arrived; `cut_tokens` says how many tokens stand in such chunks. Rates of streams are never added up: streams do not share their spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.measure import RequestMetrics, quantile, ratio
from bench.trace import Fact, Trace


@dataclass(frozen=True)
class Lane:
    """One request on the group's clock: start_s is when it was sent, seconds after the group began."""

    start_s: float
    trace: Trace
    metrics: RequestMetrics

    def arrivals(self) -> list[tuple[float, int]] | None:
        """(time on the group's clock, tokens in the chunk) of every chunk that holds tokens; None where a chunk did not state them."""
        at = self.trace.token_chunks()
        counts = [self.trace.tokens[i] for i in at]
        if any(count is None for count in counts):
            return None
        steps = [later - earlier for earlier, later in pairwise([0, *(count or 0 for count in counts)])]
        return [(self.start_s + self.trace.t_s[i], step) for i, step in zip(at, steps, strict=True)]

    @property
    def first_s(self) -> float | None:
        """When its first token arrived."""
        return None if self.metrics.ttft_s is None else self.start_s + self.metrics.ttft_s

    @property
    def last_s(self) -> float | None:
        """When its last token arrived."""
        return None if self.metrics.e2el_s is None else self.start_s + self.metrics.e2el_s


class GroupMetrics(Fact):
    """One round of `lanes` requests. None: unknown, or there was no such span.

    wall_s: from the first request sent to the last token of any lane. wall_tok_s: all tokens / wall_s, TTFT and the uneven end included.
    steady_s: the span in which every lane decodes, from the last lane's first token to the first lane's last one; steady_tok_s: tokens
    that arrived in it / steady_s. cut_tokens: tokens in chunks that reach over an end of that span, the most by which its count can be off.
    fairness: slowest / fastest lane's decode throughput.
    """

    lanes: int
    tokens: int | None
    wall_s: float | None
    wall_tok_s: float | None
    steady_s: float | None
    steady_tokens: int | None
    steady_tok_s: float | None
    cut_tokens: int | None
    lane_tok_s: tuple[float | None, ...]
    ttft_p50_s: float | None
    ttft_max_s: float | None
    fairness: float | None


def tokens_between(lanes: Sequence[Lane], begin_s: float, end_s: float) -> int | None:
    """Tokens of all lanes that arrived in (begin_s, end_s]; None where a lane's chunks do not state their tokens."""
    arrivals = [lane.arrivals() for lane in lanes]
    if any(each is None for each in arrivals):
        return None
    return sum(tokens for each in arrivals for t, tokens in each or () if begin_s < t <= end_s)


def rate_between(lanes: Sequence[Lane], begin_s: float | None, end_s: float | None) -> float | None:
    """Tokens per second of all lanes in (begin_s, end_s]; None where an end is unknown or the span is empty."""
    if begin_s is None or end_s is None or end_s <= begin_s:
        return None
    return ratio(tokens_between(lanes, begin_s, end_s), end_s - begin_s)


def steady_span(lanes: Sequence[Lane]) -> tuple[float, float] | None:
    """(begin, end) of the span in which every lane decodes; None when there is none."""
    firsts = [lane.first_s for lane in lanes]
    lasts = [lane.last_s for lane in lanes]
    known_firsts, known_lasts = [t for t in firsts if t is not None], [t for t in lasts if t is not None]
    if not lanes or len(known_firsts) < len(lanes):
        return None
    begin_s, end_s = max(known_firsts), min(known_lasts)
    return (begin_s, end_s) if end_s > begin_s else None


def group(lanes: Sequence[Lane]) -> GroupMetrics:
    """The figures of one round."""
    counts = [lane.metrics.n_tokens for lane in lanes]
    tokens = sum(n for n in counts if n is not None) if lanes and None not in counts else None
    lasts = [t for lane in lanes if (t := lane.last_s) is not None]
    wall_s = max(lasts) - min(lane.start_s for lane in lanes) if len(lasts) == len(lanes) and lanes else None
    span = steady_span(lanes)
    within = tokens_between(lanes, *span) if span else None
    ttfts = [lane.metrics.ttft_s for lane in lanes if lane.metrics.ttft_s is not None]
    rates = [lane.metrics.decode_tok_s for lane in lanes]
    return GroupMetrics(
        lanes=len(lanes),
        tokens=tokens,
        wall_s=wall_s,
        wall_tok_s=ratio(tokens, wall_s),
        steady_s=span[1] - span[0] if span else None,
        steady_tokens=within,
        steady_tok_s=ratio(within, span[1] - span[0]) if span else None,
        cut_tokens=_cut(lanes, *span) if span else None,
        lane_tok_s=tuple(rates),
        ttft_p50_s=quantile(ttfts, 0.5),
        ttft_max_s=max(ttfts, default=None),
        fairness=_fairness(rates),
    )


def _cut(lanes: Sequence[Lane], begin_s: float, end_s: float) -> int | None:
    """Tokens in the chunks under way at an end of the span: each lane's first one after it, unless the lane starts or ends there."""
    found = 0
    for lane in lanes:
        arrivals = lane.arrivals()
        if arrivals is None:
            return None
        for end in (begin_s, end_s):
            if not any(t == end for t, _ in arrivals) and arrivals[0][0] < end:
                found += next((tokens for t, tokens in arrivals if t > end), 0)
    return found


def _fairness(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return ratio(min(known), max(known)) if known and len(known) == len(rates) else None
