"""Open loop: objectives count from when a request was due. Worked out by hand."""

import itertools

import pytest

from bench.goodput import Arrival, Slo, goodput
from bench.groups import Lane
from bench.phases.open_loop import due_times
from bench.trace import Trace
from tests.bench.test_groups import lane

SLO = Slo(ttft_s=1.0, tpot_s=0.5)
# due 0, sent at once, first token after 0.5 s, then two in 1 s: TPOT 0.5
QUICK = Arrival(0.0, lane(0.0, (0.5, 1), (1.5, 3)))
# due 1, but sent at 1.75 by a busy client; first token 0.5 s later: 1.25 s after it was due
LATE = Arrival(1.0, lane(1.75, (0.5, 1), (0.75, 2)))
# due 2, in time, but slow: 2 s for two tokens after the first
SLOW = Arrival(2.0, lane(2.0, (0.25, 1), (2.25, 3)))


def failed(due_s: float) -> Arrival:
    trace = Trace(t_end_s=0.5, error="HTTP 500")
    return Arrival(due_s, Lane(due_s, trace, lane(0.0).metrics))


def test_by_hand() -> None:
    found = goodput([QUICK, LATE, SLOW, failed(3.0)], SLO)
    assert (found.requests, found.failed, found.good) == (4, 1, 1)
    assert found.attainment == 0.25
    assert found.wall_s == 4.25  # SLOW's last token
    assert found.goodput_req_s == pytest.approx(1 / 4.25)
    assert found.completed_req_s == pytest.approx(3 / 4.25)
    assert found.output_tok_s == pytest.approx(8 / 4.25)
    assert found.offered_req_s == 1.0  # three gaps in three seconds
    assert found.ttft_s is not None
    assert (found.ttft_s.min, found.ttft_s.median, found.ttft_s.max) == (0.25, 0.5, 1.25)
    assert found.lateness_s is not None
    assert found.lateness_s.max == 0.75


def test_a_client_that_sends_late_is_no_fast_server() -> None:
    """Timed from the send, LATE would have had 0.5 s and been good: the mistake is known as coordinated omission."""
    assert LATE.lane.metrics.ttft_s == 0.5
    assert not LATE.good(SLO)


def test_an_objective_is_met_at_its_limit() -> None:
    assert QUICK.lane.metrics.tpot_s == SLO.tpot_s
    assert Arrival(0.0, lane(0.0, (1.0, 1), (1.5, 2))).good(SLO)  # a TTFT of just 1 s
    assert not Arrival(0.0, lane(0.0, (1.0625, 1), (1.5, 2))).good(SLO)


def test_one_token_has_no_tpot_and_none_is_not_good() -> None:
    assert Arrival(0.0, lane(0.0, (0.5, 1))).good(SLO)
    assert not Arrival(0.0, lane(0.0)).good(SLO)


def test_in_flight_counts_overlap_only() -> None:
    back_to_back = [Arrival(0.0, lane(0.0, (1.0, 1))), Arrival(1.0, lane(1.0, (1.0, 1)))]
    assert goodput(back_to_back, SLO).in_flight_max == 1
    assert goodput([QUICK, Arrival(1.0, lane(1.0, (1.0, 1)))], SLO).in_flight_max == 2


def test_nothing_is_no_zero() -> None:
    found = goodput([], SLO)
    assert (found.attainment, found.goodput_req_s, found.offered_req_s, found.output_tok_s) == (None, None, None, None)


def test_arrivals_are_seeded_and_have_the_wanted_rate() -> None:
    dues = due_times(2.0, 4001, seed=1)
    assert dues == due_times(2.0, 4001, seed=1)
    assert dues != due_times(2.0, 4001, seed=2)
    gaps = [b - a for a, b in itertools.pairwise(dues)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.05)  # its standard error is 1.6 %
    # of exponential gaps, 1/e exceed the mean; of even ones none would, of uniform ones half
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert dues[0] == 0.2


def test_wall_time_begins_when_the_first_request_is_due() -> None:
    later = [Arrival(5.0, lane(5.0, (0.5, 1), (1.0, 2))), Arrival(6.0, lane(6.0, (0.5, 1), (1.0, 2)))]
    found = goodput(later, SLO)
    assert (found.wall_s, found.goodput_req_s) == (2.0, 1.0)
    late = goodput([Arrival(4.5, later[0].lane), later[1]], SLO)  # sent half a second late: the wait is part of it
    assert late.wall_s == 2.5


def test_the_lateness_is_of_every_request_and_the_latency_of_those_that_were_answered() -> None:
    broken = Arrival(0.0, failed(2.0).lane)  # due at 0, sent at 2, HTTP 500
    found = goodput([QUICK, broken], SLO)
    assert found.lateness_s is not None
    assert found.ttft_s is not None
    assert (found.lateness_s.n, found.lateness_s.max, found.ttft_s.n) == (2, 2.0, 1)
