"""One timer for all replies of the server: who waits until when, in one heap, woken by one Linux timerfd.

asyncio's own timers end in epoll's whole milliseconds, and each costs a handle; select(), which takes microseconds, walks over all
sockets at each call. A timerfd is one more file descriptor that becomes readable at a time given in nanoseconds.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import time

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _Timer(ctypes.Structure):
    """struct itimerspec: an interval (unused) and the time of the one wake-up, each as seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class Wheel:
    """Made in the running loop of a main thread; `close` frees the descriptor."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()
        self._timer = _Timer()
        self._loop.add_reader(self._fd, self._fire)

    async def until(self, due_ns: int) -> None:
        """Return at or after this time of CLOCK_MONOTONIC. Always lets the other streams run, also where it has passed."""
        if due_ns <= time.monotonic_ns():
            await asyncio.sleep(0)
            return
        future = self._loop.create_future()
        heapq.heappush(self._heap, (due_ns, next(self._number), future))
        if self._heap[0][2] is future:
            self._arm(due_ns)
        await future

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fire(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set anew between the wake-up and now
            os.read(self._fd, 8)
        now = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
        if self._heap:
            self._arm(self._heap[0][0])

    def _arm(self, due_ns: int) -> None:
        self._timer.at_s, self._timer.at_ns = divmod(due_ns, 1_000_000_000)
        _LIBC.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._timer), None)
