"""The client's own health while it measures: a run in which the client fell behind times itself, not the server.

    with Watch() as watch:      # inside the running event loop that reads the streams
        ...
    hygiene = watch.report()

`Watch` samples, `judge` decides; `judge` is pure.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.measure import quantile
from bench.trace import Fact

TICK_S = 0.01
APART_S = 0.001  # least time between two looks at streams whose reads the kernel stamps (bench.reading)
# A clock reading is used only if both clocks were read within this time: else the scheduler came between.
_TOGETHER_S = 0.000_2
_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # Linux: ns on a core, ns runnable without one, slices


class Limits(Fact):
    """Above any of these the client counts as behind. The lag holds up to 1 ms of timer rounding (epoll's)."""

    lag_p99_s: float = 0.025
    lag_max_s: float = 0.200
    busy_share: float = 0.90
    gc_pause_s: float = 0.050
    clock_step_s: float = 0.100
    full_reads: int = 0


class Hygiene(Fact):
    """How the client fared between a Watch's start and its report. None: not known on this system or without an event loop.

    wall_s: time watched. cpu_s: CPU time of the process, all threads. cpu_wait_s: time the watching thread was runnable but had no core.
    busy_share: (cpu_s + cpu_wait_s) / wall_s; near 1 nothing is left in reserve.
    lag_*: how late a timer each 10 ms fired in the event loop, which is how late a socket that was ready was read, but for put_off.
    gc_*: pauses of Python's garbage collector. clock_step_s: largest sudden move of the wall clock against the monotonic one
    (the clock was set, or the machine slept). reads, full_reads, events: reads from the streams' sockets, those that filled the
    buffer (more was waiting), and SSE events in them. unstamped_reads: those without the kernel's time of arrival: theirs is when they
    were read. put_off: looks at the sockets that waited until apart_s after the look before; chunks of one stream that came
    meanwhile share the time of the last. behind: the figures of this time must not be used; reason says why.
    """

    wall_s: float
    cpu_s: float
    cpu_wait_s: float | None
    busy_share: float
    lag_samples: int
    lag_p99_s: float | None
    lag_max_s: float | None
    gc_pauses: int
    gc_pause_max_s: float
    gc_pause_total_s: float
    clock_step_s: float
    reads: int
    full_reads: int
    events: int
    unstamped_reads: int | None = None
    put_off: int | None = None
    apart_s: float | None = None
    behind: bool = False
    reason: str | None = None


def judge(seen: Hygiene, limits: Limits | None = None) -> Hygiene:
    """`seen` with `behind` and `reason` set by `limits`."""
    limits = limits or Limits()
    reasons = [
        _over("a ready socket waited {:.1f} ms (p99)", seen.lag_p99_s, limits.lag_p99_s, 1000),
        _over("a ready socket waited {:.0f} ms (longest)", seen.lag_max_s, limits.lag_max_s, 1000),
        _over("the client was busy or waiting for a core {:.0f} % of the time", seen.busy_share, limits.busy_share, 100),
        _over("garbage collection stopped the client for {:.0f} ms", seen.gc_pause_max_s, limits.gc_pause_s, 1000),
        _over("the wall clock jumped by {:.3f} s", seen.clock_step_s, limits.clock_step_s, 1),
        _over("{:.0f} reads filled the buffer: data waited in the socket", seen.full_reads, limits.full_reads, 1),
    ]
    found = [reason for reason in reasons if reason]
    return seen.model_copy(update={"behind": bool(found), "reason": "; ".join(found) or None})


def _over(words: str, value: float | None, limit: float, scale: float) -> str | None:
    return words.format(value * scale) + f", limit {limit * scale:g}" if value is not None and value > limit else None


@dataclass
class ReadCount:
    """Counts of the process's streaming reads; bench.recording and bench.reading add, a Watch takes differences. Fields as in Hygiene;
    parse_s: CPU time of parsing them."""

    reads: int = 0
    full_reads: int = 0
    events: int = 0
    unstamped: int = 0
    put_off: int = 0
    parse_s: float = 0.0

    def copy(self) -> ReadCount:
        return replace(self)


READS = ReadCount()


@dataclass(frozen=True)
class _Clock:
    """One reading of every clock that accumulates."""

    wall_s: float = field(default_factory=time.monotonic)
    cpu_s: float = field(default_factory=time.process_time)
    wait_ns: int | None = field(default_factory=lambda: _waited_ns())
    counts: ReadCount = field(default_factory=READS.copy)


def _waited_ns() -> int | None:
    """Nanoseconds that this thread was runnable without a core, or None where the system does not say."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _offset_s() -> float | None:
    """Wall clock minus monotonic clock in seconds; None if the two could not be read together."""
    before = time.monotonic()
    wall = time.time()
    after = time.monotonic()
    return wall - before if after - before < _TOGETHER_S else None


class Watch:
    """Samples the process and the running event loop from entry to exit. Enter and leave it in the loop's thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits
        self._lags: list[float] = []
        self._pauses: list[float] = []
        self._step_s = 0.0
        self._offset: float | None = None
        self._gc_began: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end: _Clock | None = None

    def __enter__(self) -> Watch:
        gc.callbacks.append(self._on_gc)
        self._offset = _offset_s()
        self._begin = _Clock()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return self
        self._due = self._loop.time() + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close_lag()
        self._look_at_clock()
        self._end = _Clock()
        gc.callbacks.remove(self._on_gc)
        if self._timer:
            self._timer.cancel()

    def report(self) -> Hygiene:
        """What was seen, judged; until now while the watch is still on."""
        end, begin = self._end or _Clock(), self._begin
        wall_s, cpu_s = end.wall_s - begin.wall_s, end.cpu_s - begin.cpu_s
        wait_s = None if end.wait_ns is None or begin.wait_ns is None else (end.wait_ns - begin.wait_ns) / 1e9
        seen = Hygiene(
            wall_s=round(wall_s, 6),
            cpu_s=round(cpu_s, 6),
            cpu_wait_s=wait_s,
            busy_share=round((cpu_s + (wait_s or 0.0)) / wall_s, 6) if wall_s > 0 else 0.0,
            lag_samples=len(self._lags),
            lag_p99_s=_rounded(quantile(self._lags, 0.99)),
            lag_max_s=_rounded(max(self._lags, default=None)),
            gc_pauses=len(self._pauses),
            gc_pause_max_s=round(max(self._pauses, default=0.0), 6),
            gc_pause_total_s=round(sum(self._pauses), 6),
            clock_step_s=round(self._step_s, 6),
            reads=end.counts.reads - begin.counts.reads,
            full_reads=end.counts.full_reads - begin.counts.full_reads,
            events=end.counts.events - begin.counts.events,
            unstamped_reads=end.counts.unstamped - begin.counts.unstamped,
            put_off=end.counts.put_off - begin.counts.put_off,
            apart_s=APART_S,
        )
        return judge(seen, self._limits)

    def _tick(self) -> None:
        now = self._loop.time()
        self._lags.append(max(0.0, now - self._due))
        self._look_at_clock()
        # From now, not from when it was due: one long stop must count once, not as a row of late ticks.
        self._due = now + TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _close_lag(self) -> None:
        """A tick that is overdue at the end has not fired yet, but what it would have said is known."""
        if self._timer and (lag := self._loop.time() - self._due) > 0:
            self._lags.append(lag)

    def _look_at_clock(self) -> None:
        offset = _offset_s()
        if offset is not None and self._offset is not None:
            self._step_s = max(self._step_s, abs(offset - self._offset))
        self._offset = offset if offset is not None else self._offset

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._gc_began = now
        elif self._gc_began is not None:
            self._pauses.append(now - self._gc_began)
            self._gc_began = None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
