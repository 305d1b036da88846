"""A long prompt arriving while others decode: what it costs the newcomer and the incumbents. Pure functions over one clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bench.groups import Lane, rate_between, steady_span
from bench.measure import ratio
from bench.trace import Fact


class Interference(Fact):
    """One round. None: unknown, or the span is empty because an incumbent had ended.

    before/during/after_tok_s: tokens of all incumbents together / span. before: from the last incumbent's first token until the newcomer
    was sent; during: from then until its first token; after: from its last token until the first incumbent ended.
    during_share = during / before. worst_gap_s: longest silence of any incumbent that touches `during`.
    newcomer_slowdown: its TTFT / the TTFT of an equally long prompt that ran alone just before.
    """

    incumbents: int
    before_tok_s: float | None
    during_tok_s: float | None
    after_tok_s: float | None
    during_share: float | None
    worst_gap_s: float | None
    newcomer_ttft_s: float | None
    newcomer_slowdown: float | None


def interference(incumbents: Sequence[Lane], newcomer: Lane, alone_ttft_s: float | None) -> Interference:
    """The figures of one round; alone_ttft_s is the newcomer's TTFT on the idle server."""
    span = steady_span(incumbents)
    sent_s, first_s, last_s = newcomer.start_s, newcomer.first_s, newcomer.last_s
    end_s = span[1] if span else None
    until_s = None if first_s is None or end_s is None else min(first_s, end_s)
    before = rate_between(incumbents, span[0], min(sent_s, span[1])) if span else None
    during = rate_between(incumbents, sent_s, until_s)
    return Interference(
        incumbents=len(incumbents),
        before_tok_s=before,
        during_tok_s=during,
        after_tok_s=rate_between(incumbents, last_s, end_s),
        during_share=ratio(during, before),
        worst_gap_s=_worst_gap(incumbents, sent_s, first_s),
        newcomer_ttft_s=newcomer.metrics.ttft_s,
        newcomer_slowdown=ratio(newcomer.metrics.ttft_s, alone_ttft_s),
    )


def _worst_gap(lanes: Sequence[Lane], begin_s: float, end_s: float | None) -> float | None:
    """Longest time between two token chunks of one lane that overlaps (begin_s, end_s)."""
    gaps = []
    for lane in lanes:
        times = [lane.start_s + lane.trace.t_s[at] for at in lane.trace.token_chunks()]
        gaps += [b - a for a, b in pairwise(times) if b > begin_s and (end_s is None or a < end_s)]
    return max(gaps, default=None) if end_s is not None else None
