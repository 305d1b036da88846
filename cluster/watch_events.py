"""What a watch concludes from its looks. Pure: the state so far and one more status in, the next state and what is worth telling out.

A single bad look changes nothing but the count. States: ready, busy and starting are good; `stopped` is in order; the others are bad,
and become a failure after so many bad looks in a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.metrics import Reading
from cluster.status import Status

GOOD = ("ready", "starting", "stopped")
MAX_RESTARTS, PER_S = 2, 3600.0
BACKOFF_S = (10.0, 120.0)  # before the first and the second restart within the hour: memory comes back late after a crash


@dataclass(frozen=True)
class Event:
    """One change worth a line: what happened, in which state the kit is now, the details, and when (unix time)."""

    at_unix_s: float
    event: str
    state: str
    detail: str = ""

    def line(self) -> str:
        return f"{self.event}: {self.state}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class Seen:
    """What the watch knows. `state`: the last one that was confirmed; `strikes`: bad looks in a row since then."""

    state: str = "unknown"
    strikes: int = 0
    boot: str | None = None
    boot_ids: Mapping[str, str] = field(default_factory=dict)
    counters: Reading | None = None
    failed: bool = False


def verdict(status: Status, since_start_s: float, ready_timeout_s: float) -> tuple[str, str]:
    """The state that a status shows, in one word, and why."""
    states = {rank.state for rank in status.ranks}
    for bad in ("crashed", "frozen", "unreachable"):
        if bad in states:
            return bad, status.detail
    if states == {"stopped"}:
        return "stopped", ""
    if "stopped" in states:
        return "incomplete", status.state
    if not status.api:
        starting = status.state == "starting" and since_start_s < ready_timeout_s
        return ("starting", "") if starting else ("api silent", f"/health does not answer; {status.state}")
    if status.engine is False:
        return "hung", status.engine_detail
    return "ready", ""


def step(seen: Seen, status: Status, now_unix_s: float, strikes: int, ready_timeout_s: float) -> tuple[Seen, list[Event]]:
    """The next state, and one event per change: a rebooted node, another start, a first bad look, a confirmed failure, a recovery."""
    record = status.record or {}
    state, detail = verdict(status, now_unix_s - record.get("started_unix_s", now_unix_s), ready_timeout_s)
    events = [Event(now_unix_s, "node restarted", state, f"{role} has another boot id") for role in _rebooted(seen, status)]
    boot = record.get("boot") or seen.boot
    if seen.boot and boot != seen.boot:
        events.append(Event(now_unix_s, "started anew", state, f"boot {boot}"))
    ids = {**seen.boot_ids, **{rank.role: rank.boot_id for rank in status.ranks if rank.boot_id}}
    known = dataclasses.replace(seen, boot=boot, boot_ids=ids, counters=status.counters)
    if state in GOOD:
        event = "recovered" if seen.failed and state != "stopped" else "state"
        events += [Event(now_unix_s, event, state, detail)] if state != seen.state or seen.strikes else []
        return dataclasses.replace(known, state=state, strikes=0, failed=False), events
    count = seen.strikes + 1
    if count >= strikes and not (seen.failed and seen.state == state):
        events.append(Event(now_unix_s, "failed", state, detail))
        return dataclasses.replace(known, state=state, strikes=count, failed=True), events
    if count == 1 and not seen.failed:
        events.append(Event(now_unix_s, f"bad look 1 of {strikes}", state, detail))
    return dataclasses.replace(known, strikes=count), events


def _rebooted(seen: Seen, status: Status) -> list[str]:
    return [rank.role for rank in status.ranks if rank.boot_id and seen.boot_ids.get(rank.role, rank.boot_id) != rank.boot_id]


@dataclass(frozen=True)
class Breaker:
    """The restarts so far (unix times), and why no further one is made, where that is so."""

    restarts: tuple[float, ...] = ()
    broken: str = ""

    def recent(self, now_unix_s: float) -> int:
        return sum(1 for at in self.restarts if now_unix_s - at < PER_S)

    def wait_s(self, now_unix_s: float) -> float | None:
        """How long to wait before the next restart; None when there must be none."""
        count = self.recent(now_unix_s)
        return None if self.broken or count >= MAX_RESTARTS else BACKOFF_S[count]

    def after(self, now_unix_s: float) -> Breaker:
        return dataclasses.replace(self, restarts=(*self.restarts, now_unix_s))


def why_not(seen: Seen, status: Status, breaker: Breaker, now_unix_s: float) -> str | None:
    """Why a kit whose failure is confirmed must not be restarted now; None when it may be."""
    if not seen.failed:
        return "no failure is confirmed"
    if status.engine:
        return "the engine does useful work"
    if seen.state == "unreachable":
        return "a node is out of reach: nothing can be stopped or started there"
    if breaker.wait_s(now_unix_s) is None:
        return breaker.broken or f"{MAX_RESTARTS} restarts within the hour: no further one"
    return None
