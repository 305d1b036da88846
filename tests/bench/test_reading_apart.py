"""Streams that are ready soon after a look wait for the next, and are read together."""

import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bench import reading
from bench.hygiene import READS
from bench.reading import Selector


class Looks:
    """Two patient streams of a selector, and what was read of them when."""

    def __init__(self, patient: bool = True) -> None:
        self.selector = Selector()
        self.pairs = [socket.socketpair() for _ in range(2)]
        self.read_s: list[tuple[int, float]] = []
        for number, (ours, _) in enumerate(self.pairs):
            self.selector.watch(ours.fileno(), self._reader(number, ours), patient=patient or not number)

    def _reader(self, number: int, sock: socket.socket) -> Callable[[], bool]:
        def ready() -> bool:
            sock.recv(10)
            self.read_s.append((number, time.monotonic()))
            return False

        return ready

    def send(self, number: int) -> None:
        self.pairs[number][1].send(b"x")

    def close(self) -> None:
        self.selector.close()
        for ours, theirs in self.pairs:
            ours.close()
            theirs.close()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> float:
    """Looks 1 s apart, so that no busy machine blurs them."""
    monkeypatch.setattr(reading, "APART_S", 1.0)
    return 1.0


def test_streams_that_are_ready_soon_after_a_look_are_read_together_at_the_next(apart: float) -> None:
    looks = Looks()
    looks.send(0)
    put_off = READS.put_off
    begin = time.monotonic()
    assert looks.selector.select(0.01) == []  # quiet before: at once
    looks.send(0)
    threading.Timer(0.1, looks.send, [1]).start()
    assert looks.selector.select(5) == []
    looks.close()
    assert [number for number, _ in looks.read_s[1:]] == [0, 1]
    first, early, late = [at for _, at in looks.read_s]
    assert early - first > 0.8  # it waited until 1 s after the first look, and the other, which came meanwhile, was read with it
    assert late - early < 0.5
    assert first - begin < 0.8
    assert READS.put_off == put_off + 1


def test_a_timer_is_not_put_off(apart: float) -> None:
    looks = Looks()
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(1)
    begin = time.monotonic()
    assert looks.selector.select(0.05) == []
    took = time.monotonic() - begin
    looks.close()
    assert 0.045 < took < 0.8
    assert [number for number, _ in looks.read_s] == [0, 1]


def test_other_files_are_not_put_off(apart: float) -> None:
    looks = Looks()
    a, b = socket.socketpair()
    key = looks.selector.register(a, selectors.EVENT_READ)
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(1)
    b.send(b"x")
    begin = time.monotonic()
    assert looks.selector.select(5) == [(key, selectors.EVENT_READ)]
    took = time.monotonic() - begin
    looks.close()
    a.close()
    b.close()
    assert took < 0.8


def test_a_stream_without_stamps_has_all_read_at_once(apart: float) -> None:
    looks = Looks(patient=False)
    looks.send(0)
    looks.selector.select(0.001)
    looks.send(0)
    begin = time.monotonic()
    looks.selector.select(1.3)
    looks.selector.unwatch(looks.pairs[1][0].fileno())  # it has gone: patience again, from the next look on
    for timeout_s in (0.001, 1.3):
        looks.send(0)
        looks.selector.select(timeout_s)
    looks.close()
    assert looks.read_s[1][1] - begin < 0.8
    assert looks.read_s[3][1] - looks.read_s[2][1] > 0.8


class Time:
    """Stands for the module `time`: a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


class Asked:
    """Stands for an epoll, and keeps how long each look at it was willing to wait."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.waits_s: list[float | None] = []

    def poll(self, timeout: float | None, most: int) -> list[tuple[int, int]]:
        self.waits_s.append(timeout)
        return self._epoll.poll(timeout, most)

    def close(self) -> None:
        self._epoll.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Looks, Time, Asked]]:
    """Looks 0.25 s apart of a clock that stands still but for sleeps."""
    monkeypatch.setattr(reading, "APART_S", 0.25)
    monkeypatch.setattr(reading, "time", now := Time())
    looks = Looks()
    asked = looks.selector._epoll = Asked(looks.selector._epoll)  # type: ignore[assignment]
    yield looks, now, asked
    looks.close()


def test_once_a_look_was_put_off_the_next_sleeps_without_asking_before(watched: tuple[Looks, Time, Asked]) -> None:
    """A stream that brings something before each look takes one waking per look; when it falls silent it is waited for as before."""
    looks, now, asked = watched
    put_off = READS.put_off
    for _ in range(4):
        looks.send(0)
        assert not looks.selector._read(1.0, None)
    assert now.slept_s == [0.25, 0.25, 0.25]
    assert asked.waits_s == [1.0, 1.0, 0, 0, 0]  # the second look was found to be early; those after it were not tried
    assert READS.put_off == put_off + 3
    assert not looks.selector._read(1.0, None)  # silence at the time of a look
    assert not looks.selector._read(0.01, None)
    assert asked.waits_s[5:] == [0, 0.01]
    looks.send(0)
    assert not looks.selector._read(1.0, None)
    assert now.slept_s == [0.25] * 4  # quiet for longer: read at once
    assert len(looks.read_s) == 5
    assert READS.put_off == put_off + 3  # a look that found nothing made nothing wait


def test_a_look_that_a_timer_cut_short_is_no_sign_of_silence(watched: tuple[Looks, Time, Asked]) -> None:
    looks, now, asked = watched
    for _ in range(2):
        looks.send(0)
        looks.selector._read(1.0, None)
    assert looks.selector.select(0.125) == []
    looks.send(0)
    looks.selector._read(1.0, None)
    assert now.slept_s == [0.25, 0.125, 0.125]
    assert asked.waits_s == [1.0, 1.0, 0, 0, 0]


def test_a_loop_with_something_else_to_do_is_not_kept_waiting(watched: tuple[Looks, Time, Asked]) -> None:
    """asyncio asks with no time to wait where callbacks are due; what is ready is read all the same."""
    looks, now, _ = watched
    for _ in range(2):
        looks.send(0)
        looks.selector._read(1.0, None)
    looks.send(1)
    assert looks.selector.select(0) == []
    assert now.slept_s == [0.25]
    assert looks.read_s[-1][0] == 1
