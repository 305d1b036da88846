"""When a request came to the machine, by the kernel's stamp: a server that reads it late still knows. Linux only.

Of its own, not bench.arrival's: what is measured must not depend on what measures.
"""

import socket
import struct
import sys
import time

_SO_TIMESTAMPNS = 35  # Python has no name for it
_ROOM = 64
_TOGETHER_NS = 20_000
_TRIES = 20


class Connection(socket.socket):
    """`came_ns`: CLOCK_MONOTONIC when the last byte that was read had come in; 0: the kernel did not say."""

    came_ns = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        data, told, _, _ = self.recvmsg(size, _ROOM, flags)
        self.came_ns = 0
        for level, kind, stamp in told:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                seconds, ns = struct.unpack("@ll", stamp)
                self.came_ns = seconds * 1_000_000_000 + ns - _ahead_ns()
        return data


class Listener(socket.socket):
    """Its connections tell when what they read had come. `connections`: those that are open, by number."""

    def __init__(self, port: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # which its connections inherit: no packet of theirs is too early
        self.bind(("127.0.0.1", port))
        self.connections: dict[int, Connection] = {}

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        plain, address = super().accept()
        sock = Connection(fileno=plain.detach())
        self.connections[sock.fileno()] = sock
        return sock, address


def _ahead_ns() -> int:
    """Wall clock minus monotonic clock, of readings between which the scheduler did not come, if one such is had soon."""
    found = []
    for _ in range(_TRIES):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
        if after - before <= _TOGETHER_NS:
            break
    return min(found)[1]
