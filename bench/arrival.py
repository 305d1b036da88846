"""When bytes arrived by the kernel's own stamp, so that who reads them may come later without timing himself. Linux only.

With SO_TIMESTAMPNS the kernel stamps each packet when it comes in (on one machine: while the sender still sends) and hands out, beside what
a read returns, the stamp of the last packet in it. Stamps are of the wall clock and are put on CLOCK_MONOTONIC here.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Sequence

Told = Sequence[tuple[int, int, bytes]]  # what came beside the data
Receive = Callable[[int, int], tuple[bytes, Told, int, object]]  # recvmsg: most bytes, most bytes beside them

ROOM = 32  # bytes of one stamp with its head
_SO_TIMESTAMPNS = 35  # Python has no name for it; the stamp is a struct timespec
_unpack = struct.Struct("@ll").unpack
_FRESH_NS = 10_000_000  # the clocks' distance is read as often as this: they are slewed by 500 millionths at most, 5 µs in this time
_TOGETHER_NS = 20_000  # both clocks were read within this time: else the scheduler may have come between
_TRIES = 5


class Clock:
    """Puts a time of the wall clock on CLOCK_MONOTONIC, right to some 10 µs; a step of the wall clock is wrong for 10 ms at most."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._offset_ns = 0
        self._stale_ns = 0  # monotonic; from then on the offset is read anew

    def monotonic(self, wall_ns: int, now_ns: int) -> int:
        """`now_ns`: of CLOCK_MONOTONIC."""
        if now_ns >= self._stale_ns:
            self._look()
        return wall_ns - self._offset_ns

    def _look(self) -> None:
        """Of a few readings the one whose clocks were read closest together."""
        best_ns: int | None = None
        for _ in range(_TRIES):
            before, wall, after = self._monotonic_ns(), self._wall_ns(), self._monotonic_ns()
            if best_ns is None or after - before < best_ns:
                best_ns, self._offset_ns = after - before, wall - (before + after) // 2
            if best_ns <= _TOGETHER_NS:
                break
        self._stale_ns = after + _FRESH_NS


CLOCK = Clock()


def stamped(sock: socket.socket) -> bool:
    """Ask for stamps; False: this socket has none (TLS reads records, not packets), and is to be read at once."""
    if isinstance(sock, ssl.SSLSocket) or sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamping() -> socket.socket:
    """A socket of no other use: the kernel stamps while one that asked for it is open, and to switch that on and off costs more than a
    request does."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stamped(sock)
    return sock


def receive(sock: socket.socket) -> Receive:
    """How to read this socket: recvmsg, or what looks like it."""
    if isinstance(sock, ssl.SSLSocket) or not hasattr(sock, "recvmsg"):
        return lambda size, room: (sock.recv(size), (), 0, None)
    return sock.recvmsg


def arrived_ns(told: Told, after_ns: int, now_ns: int, clock: Clock = CLOCK) -> int:
    """When the last byte came in, CLOCK_MONOTONIC ns; `told` holds the kernel's stamp and nothing else. Never before `after_ns`, when
    the bytes before it had come, and never after `now_ns`, when it was read. Once per token: min and max would double its time."""
    seconds, ns = _unpack(told[0][2])
    at_ns = clock.monotonic(seconds * 1_000_000_000 + ns, now_ns)
    if at_ns < after_ns:
        at_ns = after_ns
    return now_ns if at_ns > now_ns else at_ns
