"""Where the borders of network writes and HTTP chunks fall. Pure: events -> pieces, the joined bytes never change."""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.fakes.render import Event

Cuts = Callable[[int, int], Iterable[int]]
Size = Callable[[], int]


class Piece(NamedTuple):
    """One HTTP chunk = one send, at `due_s`. `done` = the events whose last byte it holds; `data` may be empty."""

    due_s: float
    data: bytes
    done: tuple[Event, ...]


def pieces(events: Iterable[Event], framing: str) -> Iterator[Piece]:
    """event: a piece per event. bytes:N: borders at each Nth byte of the body and at the end of each event.

    joined:N: N events per piece, sent when the last one is due. random:SEED: 1-3 events together, cut each 1-40 bytes.
    Events without data (Cut, Stall, end) stay alone, after all that was held back.
    """
    name, _, argument = framing.partition(":")
    size, cuts = _rules(name, int(argument or 0))
    offset = 0
    for group in _groups(events, size):
        data = b"".join(event.data for event in group)
        borders = [0, *cuts(offset, len(data)), len(data)] if data else [0, 0]
        for start, end in pairwise(borders):
            yield Piece(group[-1].due_s, data[start:end], _finished(group, start, end))
        offset += len(data)


def _rules(name: str, number: int) -> tuple[Size, Cuts]:
    """How many events go together, and where inside their bytes the inner borders lie (0 < border < length)."""
    if name == "bytes":
        return lambda: 1, lambda offset, length: range(number - offset % number, length, number)
    if name == "random":
        dice = random.Random(number)
        return lambda: dice.randint(1, 3), lambda _, length: _random_cuts(dice, length)
    return lambda: max(1, number), lambda _offset, _length: ()


def _random_cuts(dice: random.Random, length: int) -> Iterator[int]:
    border = dice.randint(1, 40)
    while border < length:
        yield border
        border += dice.randint(1, 40)


def _groups(events: Iterable[Event], size: Size) -> Iterator[list[Event]]:
    held: list[Event] = []
    wanted = size()
    for event in events:
        alone = not event.data
        if held and (alone or len(held) == wanted):
            yield held
            held, wanted = [], size()
        if alone:
            yield [event]
        else:
            held.append(event)
    if held:
        yield held


def _finished(group: list[Event], start: int, end: int) -> tuple[Event, ...]:
    """Events of the group whose last byte lies in start < position <= end (an empty one: both 0)."""
    done, position = [], 0
    for event in group:
        position += len(event.data)
        if start < position <= end or not event.data:
            done.append(event)
    return tuple(done)
