"""What a watch concludes, step by step, from statuses made up by hand."""

import dataclasses

import pytest

from cluster.status import RankStatus, Status
from cluster.watch import Options
from cluster.watch_events import Breaker, Event, Seen, step, verdict, why_not

RECORD = {"boot": "b1", "started_unix_s": 0.0, "boot_phases_s": {"load": 1.0}}
READY = Status(
    "twin",
    "ready",
    True,
    True,
    True,
    "",
    tuple(RankStatus(n, r, "running", "", RECORD, f"id-{r}") for n, r in enumerate(("head", "worker"))),
    RECORD,
)


def ranks(**changes: tuple[str, str]) -> Status:
    """READY with other rank states: role -> (state, detail)."""
    each = tuple(dataclasses.replace(rank, state=changes[rank.role][0]) if rank.role in changes else rank for rank in READY.ranks)
    return dataclasses.replace(READY, process=False, engine=None, detail="; ".join(detail for _, detail in changes.values()), ranks=each)


CRASHED = ranks(worker=("crashed", "worker: killed by SIGKILL"))
HUNG = dataclasses.replace(READY, engine=False, engine_detail="one token was not generated within 5 s", state="engine does not answer")
STOPPED = dataclasses.replace(ranks(head=("stopped", ""), worker=("stopped", "")), api=False, record=None)


def after(*statuses: Status, seen: Seen | None = None, strikes: int = 3) -> tuple[Seen, list[tuple[str, str]]]:
    """The state after these looks, one each 10 s, and (event, state) of all events."""
    found, told = seen or Seen(), []
    for number, status in enumerate(statuses):
        found, events = step(found, status, 1000.0 + 10 * number, strikes, 3600)
        told += [(event.event, event.state) for event in events]
    return found, told


@pytest.mark.parametrize(
    ("status", "state", "why"),
    [
        (READY, "ready", ""),
        (CRASHED, "crashed", "worker: killed by SIGKILL"),
        (HUNG, "hung", "one token was not generated within 5 s"),
        (ranks(head=("frozen", "head: stopped by a signal")), "frozen", "head: stopped by a signal"),
        (ranks(worker=("unreachable", "worker: no route")), "unreachable", "worker: no route"),
        (ranks(head=("crashed", "head: exit 1"), worker=("unreachable", "worker: gone")), "crashed", "head: exit 1; worker: gone"),
        (STOPPED, "stopped", ""),
        (dataclasses.replace(ranks(worker=("stopped", "")), state="incomplete: x"), "incomplete", "incomplete: x"),
        (dataclasses.replace(READY, api=False, engine=None, state="starting"), "starting", ""),
        (
            dataclasses.replace(READY, api=False, engine=None, state="api does not answer"),
            "api silent", "/health does not answer; api does not answer",
        ),
    ],
)  # fmt: skip
def test_verdict(status: Status, state: str, why: str) -> None:
    assert verdict(status, 100, 3600) == (state, why)


def test_a_start_that_takes_too_long_is_no_longer_starting() -> None:
    slow = dataclasses.replace(READY, api=False, engine=None, state="starting")
    assert verdict(slow, 3601, 3600)[0] == "api silent"


def test_only_changes_are_told() -> None:
    assert after(READY, READY, READY)[1] == [("state", "ready")]


def test_a_failure_needs_strikes_in_a_row() -> None:
    seen, told = after(READY, HUNG, HUNG)
    assert told == [("state", "ready"), ("bad look 1 of 3", "hung")]
    assert (seen.failed, seen.strikes) == (False, 2)
    seen, told = after(READY, HUNG, HUNG, READY, HUNG, HUNG)
    assert ("failed", "hung") not in told
    seen, told = after(READY, HUNG, HUNG, HUNG, HUNG)
    assert told[-1] == ("failed", "hung")
    assert seen.failed


def test_recovery_and_a_change_of_kind() -> None:
    seen, told = after(READY, HUNG, HUNG, HUNG, CRASHED, READY)
    assert told == [("state", "ready"), ("bad look 1 of 3", "hung"), ("failed", "hung"), ("failed", "crashed"), ("recovered", "ready")]
    assert not seen.failed


def test_down_is_no_failure() -> None:
    seen, told = after(READY, STOPPED, STOPPED, STOPPED, STOPPED)
    assert (told, seen.failed) == ([("state", "ready"), ("state", "stopped")], False)


def test_rebooted_node_is_named() -> None:
    other = dataclasses.replace(CRASHED.ranks[1], boot_id="id-new")
    seen, _ = after(READY)
    _, told = after(dataclasses.replace(CRASHED, ranks=(CRASHED.ranks[0], other)), seen=seen)
    assert told == [("node restarted", "crashed"), ("bad look 1 of 3", "crashed")]


def test_another_start_is_named() -> None:
    seen, _ = after(READY)
    _, told = after(dataclasses.replace(READY, record={**RECORD, "boot": "b2"}), seen=seen)
    assert told == [("started anew", "ready")]


def test_line_of_an_event() -> None:
    assert Event(0, "failed", "hung", "why").line() == "failed: hung (why)"
    assert Event(0, "state", "ready").line() == "state: ready"


def test_breaker() -> None:
    fresh = Breaker()
    assert fresh.wait_s(0) == 10
    once = fresh.after(100)
    assert once.wait_s(200) == 120
    twice = once.after(300)
    assert twice.wait_s(400) is None
    assert twice.wait_s(3700) == 120  # the first one is more than an hour ago
    assert dataclasses.replace(fresh, broken="x").wait_s(0) is None


UNREACHABLE = "a node is out of reach: nothing can be stopped or started there"
FAILED = Seen(state="crashed", failed=True, strikes=3)


@pytest.mark.parametrize(
    ("seen", "status", "breaker", "reason"),
    [
        (FAILED, CRASHED, Breaker(), None),
        (dataclasses.replace(FAILED, failed=False), CRASHED, Breaker(), "no failure is confirmed"),
        (FAILED, READY, Breaker(), "the engine does useful work"),
        (dataclasses.replace(FAILED, state="unreachable"), CRASHED, Breaker(), UNREACHABLE),
        (FAILED, CRASHED, Breaker((900.0, 950.0)), "2 restarts within the hour: no further one"),
        (FAILED, CRASHED, Breaker(broken="the settings are refused: x"), "the settings are refused: x"),
    ],
)  # fmt: skip
def test_when_a_restart_is_due(seen: Seen, status: Status, breaker: Breaker, reason: str | None) -> None:
    assert why_not(seen, status, breaker, 1000.0) == reason


def test_times_within_which_a_failure_is_told() -> None:
    assert Options(15, 3).told() == (
        "every 15 s, a failure is 3 bad looks in a row: a rank that ended or is stopped within 50 s, "
        "an engine that hangs 75 s, a node out of reach 60 s"
    )
    assert (Options(2, 3).deadline_s, Options(10, 3).deadline_s, Options(60, 3).deadline_s) == (5, 10, 20)
