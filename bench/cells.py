"""Requests of one receipt that were asked for different things (first, repeat, edited; turn by turn), summarised apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from bench.measure import RequestMetrics
from bench.proofs import CacheProof
from bench.spread import Spread, spread
from bench.trace import Fact

Label = Literal["cold", "warm", "partial"]


class Cell(Fact):
    """The requests that were asked for `asked` and of which the data say `label` (None: the server states nothing cached)."""

    asked: str
    label: Label | None
    requests: int
    prompt_tokens: Spread | None
    cached_share: float | None
    ttft_s: Spread | None
    prefill_tok_s: Spread | None
    decode_tok_s: Spread | None


@dataclass(frozen=True)
class Member:
    """One finished request as a cell sees it."""

    asked: str
    metrics: RequestMetrics
    cache: CacheProof | None

    @property
    def label(self) -> Label | None:
        return self.cache.label if self.cache else None


def cells(members: Sequence[Member]) -> tuple[Cell, ...]:
    """One cell per pair of what was asked and what the data say, in the order in which they were asked first."""
    order = list(dict.fromkeys(member.asked for member in members))
    ranked = sorted(members, key=lambda m: (order.index(m.asked), m.label or ""))
    return tuple(_cell(asked, label, list(some)) for (asked, label), some in groupby(ranked, key=lambda m: (m.asked, m.label)))


def _cell(asked: str, label: Label | None, members: Sequence[Member]) -> Cell:
    known = [m for m in members if m.cache and m.cache.cached_tokens is not None and m.metrics.prompt_tokens]
    prompt = sum(m.metrics.prompt_tokens or 0 for m in known)
    cached = sum(m.cache.cached_tokens or 0 for m in known if m.cache)
    return Cell(
        asked=asked,
        label=label,
        requests=len(members),
        prompt_tokens=spread(m.metrics.prompt_tokens for m in members),
        cached_share=cached / prompt if prompt else None,
        ttft_s=spread(m.metrics.ttft_s for m in members),
        prefill_tok_s=spread(m.cache.prefill_tok_s if m.cache else None for m in members),
        decode_tok_s=spread(m.metrics.decode_tok_s for m in members),
    )
