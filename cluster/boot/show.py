"""Progress of a start on stderr: one live line for each rank on a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cluster.boot.phases import ORDER, Phases

if TYPE_CHECKING:
    from rich.live import Live

_EVERY_S = 15.0
_QUIET_S = 4.0  # a start that is over by then needs no progress


def line(role: str, phases: Phases, now_unix_s: float) -> str:
    """`head: weights 12 of 83, 15 s, about 88 s to go`."""
    count = f" {phases.done} of {phases.total}" if phases.total else ""
    eta = phases.eta_s(now_unix_s)
    left = f", about {eta:.0f} s to go" if eta else ""
    return f"{role}: {ORDER[phases.phase]}{count}, {max(0.0, now_unix_s - phases.since):.0f} s{left}"


class Progress:
    """Told of every look; prints where a person is helped. `say` prints one message to stderr."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.begin = self.told = time.monotonic()
        self.known: dict[str, str] = {}
        self.live: Live | None = None
        self.terminal = sys.stderr.isatty()

    def update(self, phases: Mapping[str, Phases], now: Mapping[str, float]) -> None:
        """Show where every rank is; times on each node's own clock."""
        if time.monotonic() - self.begin < _QUIET_S:
            return
        if self.terminal:
            self._redraw([line(role, each, now[role]) for role, each in phases.items()])
        else:
            self._print(phases, now)

    def _print(self, phases: Mapping[str, Phases], now: Mapping[str, float]) -> None:
        """A line for each rank in a new phase, on kits with several; all ranks where nothing was said for a while."""
        fresh = [role for role, each in phases.items() if len(phases) > 1 and self.known.get(role) != each.phase]
        if time.monotonic() - self.told >= _EVERY_S:
            fresh = list(phases)
            self.say(f"waiting for ready, {time.monotonic() - self.begin:.0f} s so far")
        if fresh:
            self.told = time.monotonic()
            self.known.update({role: phases[role].phase for role in fresh})
            self.say("\n".join(f"  {line(role, phases[role], now[role])}" for role in fresh))

    def _redraw(self, lines: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self.live is None:
            self.live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self.live.start()
        self.live.update(Text("\n".join(lines)))

    def close(self) -> None:
        """Take the live lines away, so that what comes next is printed below what was said."""
        if self.live is not None:
            self.live.stop()
            self.live = None
