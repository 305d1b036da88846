"""The kernel's stamps, on real sockets; and how a stamp of the wall clock is put on the monotonic one, with clocks that a test sets."""

import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from bench.arrival import ROOM, Clock, arrived_ns, receive, stamped
from tests.bench.streams import stamps

MS = 1_000_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what a TCP socket receives")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
    with ours, theirs, stamps() if sys.platform == "linux" else nullcontext():
        assert stamped(ours) is (sys.platform == "linux")
        ours.setblocking(False)
        yield ours, theirs


def told(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, 35, struct.pack("@ll", *divmod(wall_ns, 1_000_000_000)))]


@linux
def test_a_stamp_tells_when_it_came_and_not_when_it_was_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    before_ns = time.monotonic_ns()
    theirs.send(b"x" * 200)
    after_ns = time.monotonic_ns()
    time.sleep(0.2)
    data, beside, _, _ = receive(ours)(65536, ROOM)
    now_ns = time.monotonic_ns()
    assert data == b"x" * 200
    at_ns = arrived_ns(beside, 0, now_ns)
    assert before_ns - MS < at_ns < after_ns + MS  # the clocks are read within far less than this
    assert now_ns - at_ns > 199 * MS


@linux
def test_of_two_arrivals_in_one_read_the_last_one_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    time.sleep(0.1)
    before_ns = time.monotonic_ns()
    theirs.send(b"y")
    time.sleep(0.05)
    data, beside, _, _ = receive(ours)(65536, ROOM)
    assert data == b"xy"
    assert arrived_ns(beside, 0, time.monotonic_ns()) > before_ns - MS


def test_tls_has_no_stamps() -> None:
    a, b = socket.socketpair()
    with b, ssl.create_default_context().wrap_socket(a, server_hostname="x", do_handshake_on_connect=False) as secret:
        assert not stamped(secret)
        secret.setblocking(False)
        with pytest.raises(ssl.SSLWantReadError):
            secret.do_handshake()
        with pytest.raises(ssl.SSLWantReadError):
            receive(secret)(10, ROOM)  # recvmsg would raise NotImplementedError


class Clocks:
    """A wall clock `ahead_ns` ahead of the monotonic one, which itself goes on by the next of `steps_ns` at each reading of it."""

    def __init__(self, ahead_ns: int, steps_ns: list[int]) -> None:
        self.now_ns, self.ahead_ns, self.steps_ns, self.looks = 1000 * MS, ahead_ns, steps_ns, 0

    def monotonic(self) -> int:
        self.looks += 1
        self.now_ns += self.steps_ns.pop(0) if self.steps_ns else 0
        return self.now_ns

    def wall(self) -> int:
        return self.now_ns + self.ahead_ns

    def clock(self) -> Clock:
        return Clock(self.wall, self.monotonic)


def test_a_wall_time_is_put_on_the_monotonic_clock_and_the_distance_is_read_anew() -> None:
    clocks = Clocks(5_000_000 * MS, [])
    clock = clocks.clock()
    assert clock.monotonic(5_000_900 * MS, 1000 * MS) == 900 * MS
    clocks.ahead_ns += 3 * MS
    assert clock.monotonic(5_001_004 * MS, 1009 * MS) == 1004 * MS  # still the old distance
    assert clock.monotonic(5_001_013 * MS, 1011 * MS) == 1010 * MS
    assert clocks.looks == 4


def test_the_scheduler_between_two_clocks_is_no_distance() -> None:
    """The second reading of the first try comes 8 ms late; the next try is sound."""
    clocks = Clocks(0, [0, 8 * MS, 0, 4000])
    assert abs(clocks.clock().monotonic(900 * MS, 1000 * MS) - 900 * MS) <= 4000


def test_a_stamp_lies_between_the_one_before_and_the_reading() -> None:
    clock = Clocks(7 * MS, []).clock()
    assert arrived_ns(told(907 * MS), 800 * MS, 950 * MS, clock) == 900 * MS
    assert arrived_ns(told(907 * MS), 920 * MS, 950 * MS, clock) == 920 * MS
    assert arrived_ns(told(987 * MS), 920 * MS, 950 * MS, clock) == 950 * MS
