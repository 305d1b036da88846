"""Progress of bytes on stderr: one line for each thing that goes on, on a terminal; a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live

_EVERY_S = 15.0  # between plain lines
_WINDOW_S = 20.0  # the rate is that of the last so many seconds

Tell = Callable[[Mapping[str, int]], None]


def gib(count: float) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


@dataclass
class Meter:
    """How one transfer goes: bytes done of `total`, rate, time left."""

    total: int
    clock: Callable[[], float] = time.monotonic
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def at(self, done: int) -> str:
        """The state in words after `done` bytes in all."""
        now = self.clock()
        self.seen.append((now, done))
        while len(self.seen) > 2 and now - self.seen[0][0] > _WINDOW_S:
            self.seen.popleft()
        begin, first = self.seen[0]
        rate = (done - first) / (now - begin) if now > begin else 0.0
        share = f"{gib(done)} of {gib(self.total)} ({100 * done // max(1, self.total)} %)"
        left = f", {_minutes((self.total - done) / rate)} left" if rate > 0 and done < self.total else ""
        return f"{share}, {gib(rate)}/s{left}"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def shown(verb: str, totals: Mapping[str, int], say: Callable[[str], None]) -> Iterator[Tell]:
    """A function to be told, for each name in `totals`, how many bytes are done."""
    console, meters, last = (
        Console(stderr=True, highlight=False, soft_wrap=True),
        {n: Meter(t) for n, t in totals.items()},
        [time.monotonic()],
    )
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def tell(done: Mapping[str, int]) -> None:
        lines = [f"{name}: {verb} {meters[name].at(count)}" for name, count in done.items()]
        if live:
            live.update("\n".join(lines), refresh=True)
        elif time.monotonic() - last[0] >= _EVERY_S:
            last[0] = time.monotonic()
            for line in lines:
                say(line)

    with live or contextlib.nullcontext():
        yield tell
