"""Reading many sockets at little cost: an asyncio loop that reads streams while it waits, and parses between the waits.

asyncio spends most of a small read's time on its own bookkeeping, and a thread beside the loop would spend it on changing threads.
Here the streams' sockets stand in a second epoll behind the loop's selector: `select` reads and stamps whatever is ready, and goes
back to asyncio only for a timer, another file or a stream that wants its reads parsed. Any other asyncio loop serves too, at its own
price.

Most of what is left is waking up. Where the kernel stamps what arrives (bench.arrival), nothing is lost by reading it a little later: so
streams that are ready less than APART_S after the last look wait until then, and one waking reads them all. A stream that has been
quiet for longer is read at once, and so is every stream while one is watched whose reads have no stamps. What is lost: two chunks of one
stream that come between two looks are one read, and share the second one's time. Timers run in the same thread and are not put off, so
the lag of a timer (see bench.hygiene) is how much later than that a ready stream was read.

To find out that a look is to be put off takes a waking, too. So once one was, the next look is at its time without asking before, for
as long as each finds something; other files of the loop are then as late as streams are, at most APART_S.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from bench.arrival import stamping
from bench.hygiene import APART_S, READS

T = TypeVar("T")
Ready = Callable[[], bool]  # reads one stream; True: it wants its reads parsed now
SLICE_READS = 128  # parsed at one go, well under a millisecond: so long may a stream that is ready have to wait
_MOST_READY = 1024


class Selector(selectors.BaseSelector):
    """asyncio's selector for everything but streams; those are read here. Linux only."""

    def __init__(self) -> None:
        self._others = selectors.EpollSelector()
        self._epoll = select.epoll()
        self._epoll.register(self._others.fileno(), select.EPOLLIN)
        self._streams: dict[int, Ready] = {}
        self._hasty: set[int] = set()  # those that are to be read at once
        self._looked_s = 0.0
        self._steady = False  # the last look was put off
        self._stamping = stamping()

    def watch(self, fd: int, ready: Ready, *, patient: bool = False) -> None:
        """`patient`: it may wait for APART_S, for its reads are stamped by the kernel."""
        self._streams[fd] = ready
        if not patient:
            self._hasty.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Nothing happens where it is not watched."""
        if self._streams.pop(fd, None):
            self._hasty.discard(fd)
            self._epoll.unregister(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self._streams:
            return self._others.select(timeout)
        due_s = None if timeout is None else time.monotonic() + timeout
        left_s = timeout
        while not self._read(left_s, due_s):
            if due_s is not None:
                left_s = due_s - time.monotonic()
                if left_s <= 0:
                    return []
        return self._others.select(0)

    def _read(self, timeout: float | None, due_s: float | None) -> bool:
        """Read each stream that is ready, waiting at most `timeout` for the first, which ends at `due_s`; True: asyncio has something
        to do."""
        streams, back = self._streams, False
        for fd, _ in self._ready(timeout, due_s):
            ready = streams.get(fd)
            if ready is None:
                back = True  # another file; or a stream that one before it in this list has ended
            elif ready():
                back = True
        return back

    def _ready(self, timeout: float | None, due_s: float | None) -> list[tuple[int, int]]:
        """What there is to read at the next look, which is to be at `due_s` at the latest."""
        poll, waited = self._epoll.poll, False
        if self._hasty:
            return poll(timeout, _MOST_READY)
        if self._steady:
            waited = self._wait(due_s)
            found = poll(0, _MOST_READY)
            self._steady = bool(found) or time.monotonic() < self._looked_s + APART_S
        else:
            found = poll(timeout, _MOST_READY)
            if found and all(fd in self._streams for fd, _ in found):
                self._steady = waited = self._wait(due_s)
            if waited:
                found = poll(0, _MOST_READY)
        if found:
            self._looked_s = time.monotonic()
            READS.put_off += waited
        return found

    def _wait(self, due_s: float | None) -> bool:
        """Until APART_S after the last look that found something, but not beyond `due_s`; False: that time has come."""
        now_s = time.monotonic()
        until_s = self._looked_s + APART_S
        if due_s is not None:
            until_s = min(until_s, due_s)
        if until_s <= now_s:
            return False
        time.sleep(until_s - now_s)
        return True

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._others.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._others.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._others.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._others.get_map()

    def close(self) -> None:
        self._stamping.close()
        self._epoll.close()
        self._others.close()


class ReadingLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose `streams` are read as above."""

    def __init__(self) -> None:
        self.streams = Selector()
        super().__init__(self.streams)


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on the reading loop where the system has epoll, else on asyncio's loop that waits for sockets by select or kqueue."""
    with asyncio.Runner(loop_factory=ReadingLoop if hasattr(select, "epoll") else asyncio.SelectorEventLoop) as runner:
        return runner.run(main)


def watch(loop: asyncio.AbstractEventLoop, fd: int, ready: Ready, *, patient: bool = False) -> None:
    """Have `ready` called whenever there is something to read, or a moment later where it is `patient`."""
    if isinstance(loop, ReadingLoop):
        loop.streams.watch(fd, ready, patient=patient)
    else:
        loop.add_reader(fd, ready)


def unwatch(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    if isinstance(loop, ReadingLoop):
        loop.streams.unwatch(fd)
    else:
        loop.remove_reader(fd)


class Parsed(Protocol):
    """A stream whose reads are parsed a slice at a time."""

    loop: asyncio.AbstractEventLoop

    def work(self, reads: int) -> bool:
        """Parse at most so many of the reads that wait; True: there are more."""


class Desk:
    """The streams of one loop that want to be parsed, in turn, a slice each: between two slices all that is ready is read and stamped.

    Parsed in one go, an answer of thousands of chunks would delay the stamps of the streams that still run. Holds no reference to its
    loop, whose entry in DESKS would then never go.
    """

    def __init__(self) -> None:
        self._waiting: deque[Parsed] = deque()

    def want(self, stream: Parsed) -> None:
        """Once per stream until its `work` has said that there is no more."""
        if not self._waiting:
            stream.loop.call_soon(self._slice)
        self._waiting.append(stream)

    def _slice(self) -> None:
        began_s = time.thread_time()
        # Streams with a read or two each share a slice; one with more than that has it alone.
        for _ in range(min(len(self._waiting), SLICE_READS)):
            stream = self._waiting.popleft()
            if stream.work(SLICE_READS):
                self._waiting.append(stream)
                break
        READS.parse_s += time.thread_time() - began_s
        if self._waiting:
            self._waiting[0].loop.call_soon(self._slice)


DESKS: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()
