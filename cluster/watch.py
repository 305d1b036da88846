"""The watch over a running kit: a look every so often, a line per change, and a restart where that was asked for."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster import lifecycle, state, status
from cluster.boot.signatures import signature
from cluster.errors import BadSettings, LaunchError
from cluster.session import Cluster
from cluster.watch_events import Breaker, Event, Seen, step, why_not

_LOOK_S = 5.0  # asking the nodes, and 3 s for a /health that does not answer
_UNREACHABLE_S = 10.0  # a connection attempt ends after 8 s
_LONGEST_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Options:
    """How to watch: seconds between looks, bad looks in a row that make a failure, whether to restart then."""

    interval_s: float
    strikes: int
    restart: bool = False

    @property
    def deadline_s(self) -> float:
        """How long one token may take."""
        return min(max(self.interval_s, 5.0), _LONGEST_DEADLINE_S)

    def notices_within_s(self, look_s: float) -> float:
        """The longest time from a failure to its line: it begins just after a look, and each bad look takes `look_s`."""
        return self.interval_s + (self.strikes - 1) * max(self.interval_s, look_s) + look_s

    def told(self) -> str:
        """In which time what is noticed."""
        ended, hung, away = (self.notices_within_s(s) for s in (_LOOK_S, _LOOK_S + self.deadline_s, _UNREACHABLE_S + _LOOK_S))
        looks = f"every {self.interval_s:g} s, a failure is {self.strikes} bad looks in a row"
        return (
            f"{looks}: a rank that ended or is stopped within {ended:g} s, an engine that hangs {hung:g} s, a node out of reach {away:g} s"
        )


@dataclass
class Watch:
    """One watch. `tell`: told of every event; events also go to `log`, one JSON object a line. `say`: what a restart says."""

    cluster: Cluster
    options: Options
    log: Path
    tell: Callable[[Event], None]
    say: Callable[[str], None]
    seen: Seen = field(default_factory=Seen)
    breaker: Breaker = field(default_factory=Breaker)
    refused: str = ""
    owed: bool = False  # a restart of ours failed: that the kit is stopped now is no one's wish

    def forever(self) -> None:
        """Look until interrupted. One watch per kit: raises LaunchError when another is at work."""
        with state.lock(self.cluster.kit, "watch.lock", "another watch looks after"):
            self.say(f"watching kit {self.cluster.kit} {self.options.told()}; events in {self.log}")
            while True:
                begin = time.monotonic()
                self.once()
                time.sleep(max(0.0, self.options.interval_s - (time.monotonic() - begin)))

    def once(self) -> status.Status:
        """One look, what follows from it, and a restart where one is due."""
        found = status.look(self.cluster, deadline_s=self.options.deadline_s, before=self.seen.counters)
        timeout_s = self.cluster.effective.settings.ready_timeout
        self.seen, events = step(self.seen, found, time.time(), self.options.strikes, timeout_s)
        for event in events:
            self._emit(event)
        self.owed = self.owed and self.seen.state == "stopped"
        if self.owed:
            self.seen = dataclasses.replace(self.seen, failed=True)
        if self.options.restart and self.seen.failed:
            self._restart(found)
        return found

    def _emit(self, event: Event) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as file:
            file.write(json.dumps({"kit": self.cluster.kit, **dataclasses.asdict(event)}) + "\n")
        self.tell(event)  # after it is kept: who reads the line may end the watch

    def _event(self, event: str, detail: str) -> None:
        self._emit(Event(time.time(), event, self.seen.state, detail))

    def _restart(self, found: status.Status) -> None:
        """Restart once, after the backoff, if nothing speaks against it; the logs of every rank are saved by the stop."""
        reason = why_not(self.seen, found, self.breaker, time.time())
        if reason:
            if reason != self.refused:
                self._event("no restart", reason)
            self.refused = reason
            return
        wait_s = self.breaker.wait_s(time.time()) or 0.0
        self._event("restarting", f"in {wait_s:g} s")
        time.sleep(wait_s)
        again = status.look(self.cluster, deadline_s=self.options.deadline_s)
        if again.ready or (all(rank.state == "stopped" for rank in again.ranks) and not self.owed):
            self._event("no restart", f"meanwhile it is {again.state}")
            return
        self.breaker = self.breaker.after(time.time())
        self._do_restart()

    def _do_restart(self) -> None:
        try:
            lifecycle.restart(self.cluster, self.say)
        except LaunchError as error:
            self.owed = True
            refused = refused_setting(error)
            if refused:  # what the settings forbid does not start at the next attempt either
                self.breaker = dataclasses.replace(self.breaker, broken=f"a setting is refused: {refused}")
            self._event("restart failed", self.breaker.broken or _first(error))
        else:
            self.seen = Seen(boot=None, boot_ids=self.seen.boot_ids)
            self._event("restarted", "")


def refused_setting(error: LaunchError) -> str:
    """What a failed start says of a setting that it was refused for; empty for any other failure."""
    if isinstance(error, BadSettings):
        return _first(error)
    known = ((signature(line), line.strip()) for line in str(error).splitlines())
    return next((line for found, line in known if found and found.kind == "settings"), "")


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0]


def events_path(kit: str) -> Path:
    """Where the events of a kit are kept, on the machine that watches."""
    return state.run_dir(kit) / "events.jsonl"
