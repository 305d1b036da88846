"""Streams that are ready soon after a look wait for the next, and are read together."""

import selectors
import socket
import threading
import time
from collections.abc import Callable

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
