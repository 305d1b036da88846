"""Requests that arrive when they are due, not when the server is ready: objectives, goodput, and the client's own lateness. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.groups import Lane
from bench.measure import ratio
from bench.spread import Spread, spread
from bench.trace import Fact


class Slo(Fact):
    """Objectives of one request: both must hold. ttft_s counts from when the request was due."""

    ttft_s: float
    tpot_s: float


class Goodput(Fact):
    """All requests of an open-loop run, on one clock that starts with the run.

    ttft_s: from the time a request was due, so that a client that sends late does not look like a fast server. lateness_s: how late
    this client sent it. good: requests within both objectives; a failed one, or one whose times are unknown, is not. wall_s: from the
    first due time to the last token. offered_req_s: requests / span of the due times. in_flight_max: most requests unanswered at once.
    """

    requests: int
    failed: int
    good: int
    attainment: float | None
    goodput_req_s: float | None
    completed_req_s: float | None
    offered_req_s: float | None
    output_tok_s: float | None
    wall_s: float | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    lateness_s: Spread | None
    in_flight_max: int


@dataclass(frozen=True)
class Arrival:
    """One request: when it was due, and the lane it became."""

    due_s: float
    lane: Lane

    @property
    def failed(self) -> bool:
        return self.lane.trace.error is not None

    @property
    def lateness_s(self) -> float:
        return self.lane.start_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.lane.first_s is None else self.lane.first_s - self.due_s

    def good(self, slo: Slo) -> bool:
        """Within both objectives. One token has no TPOT: only its TTFT counts."""
        metrics = self.lane.metrics
        if self.failed or self.ttft_s is None or not metrics.n_tokens:
            return False
        within = metrics.n_tokens == 1 or (metrics.tpot_s is not None and metrics.tpot_s <= slo.tpot_s)
        return self.ttft_s <= slo.ttft_s and within


def goodput(arrivals: Sequence[Arrival], slo: Slo) -> Goodput:
    """The figures of the whole run."""
    done = [arrival for arrival in arrivals if not arrival.failed]
    good = sum(arrival.good(slo) for arrival in arrivals)
    lasts = [t for arrival in done if (t := arrival.lane.last_s) is not None]
    dues = [arrival.due_s for arrival in arrivals]
    wall_s = max(lasts) - min(dues) if lasts else None
    counts = [arrival.lane.metrics.n_tokens for arrival in done]
    tokens = sum(n for n in counts if n is not None) if counts and None not in counts else None
    return Goodput(
        requests=len(arrivals),
        failed=len(arrivals) - len(done),
        good=good,
        attainment=ratio(good, len(arrivals)),
        goodput_req_s=ratio(good, wall_s),
        completed_req_s=ratio(len(done), wall_s),
        offered_req_s=ratio(len(dues) - 1, max(dues) - min(dues)) if dues else None,
        output_tok_s=ratio(tokens, wall_s),
        wall_s=wall_s,
        ttft_s=spread(arrival.ttft_s for arrival in done),
        tpot_s=spread(arrival.lane.metrics.tpot_s for arrival in done),
        lateness_s=spread(arrival.lateness_s for arrival in arrivals),
        in_flight_max=_in_flight([(a.lane.start_s, a.lane.start_s + a.lane.trace.t_end_s) for a in arrivals]),
    )


def _in_flight(spans: Sequence[tuple[float, float]]) -> int:
    """Most spans that overlap; one that ends as another begins does not overlap it."""
    most = now = 0
    for _, step in sorted([(end, -1) for _, end in spans] + [(begin, 1) for begin, _ in spans]):
        now += step
        most = max(most, now)
    return most
