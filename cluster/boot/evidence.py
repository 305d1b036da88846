"""What is said of a start that failed: phase and use of every rank, the line that explains it best, the last lines. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.boot import signatures
from cluster.boot.look import Deep, Line, Look
from cluster.boot.phases import ORDER, Phases
from cluster.boot.signatures import Cause
from cluster.boot.stall import Pulse, Stall
from cluster.errors import LaunchError

_KEPT, _KEPT_KNOWN = 400, 100  # lines of a rank: the newest, and those with a known meaning from its whole start
_SHOWN = 8
_WHY = {
    "idle": "nothing was logged and no processor was used",
    "stopped": "a process is stopped by a signal and nothing else moves",
    "spinning": "nothing was logged; processes are busy, as when a collective spins",
}


@dataclass
class Kept:
    """The lines of one rank's log that a report may need."""

    newest: deque[Line] = field(default_factory=lambda: deque(maxlen=_KEPT))
    known: list[Line] = field(default_factory=list)

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.newest.append(line)
            if len(self.known) < _KEPT_KNOWN and signatures.signature(line.text):
                self.known.append(line)

    def all(self) -> list[Line]:
        return [*self.known, *self.newest]

    def tail(self, count: int = _SHOWN) -> list[str]:
        return [line.text for line in self.newest][-count:]


def likely(kept: Mapping[str, Kept], *, known_only: bool) -> Cause | None:
    """The line that explains the failure best; with `known_only`, only one with a signature."""
    found = signatures.cause({role: each.all() for role, each in kept.items()})
    return None if found is None or (known_only and found.signature is None) else found


def state(phases: Phases, pulse: Pulse, look: Look) -> str:
    """`process and imports since 31 s, 2 processes (T 2), 0.0 cores; GPU idle 4 %; 10.77.0.2: 3 ESTABLISHED`."""
    letters = [letter for _, _, letter in look.states]
    counted = ", ".join(f"{letter} {letters.count(letter)}" for letter in sorted(set(letters))) or "none"
    count = f" {phases.done} of {phases.total}" if phases.total else ""
    parts = [
        f"{ORDER[phases.phase]}{count} since {look.at_unix_s - phases.since:.0f} s",
        f"{len(letters)} processes ({counted}), {pulse.cores:.1f} cores used",
        *([f"stopped by a signal: {', '.join(look.frozen)}"] if look.frozen else []),
        *(_deep(look.deep) if look.deep else []),
    ]
    return "; ".join(parts)


def _deep(deep: Deep) -> list[str]:
    gpus = [f"GPU {use or 0:.0f} %" + (f" {watts:.0f} W" if watts is not None else "") for use, watts in deep.gpus or ()]
    gib = f"{deep.memory_available_bytes / 2**30:.1f} of {deep.memory_total_bytes / 2**30:.1f} GiB memory available"
    peers = [
        f"{peer}: " + (", ".join(f"{count} {name}" for name, count in sorted(states.items())) or "no connection")
        for peer, states in deep.peers.items()
    ]
    return [*gpus, gib, *peers]


def stalled(stall: Stall, states: Mapping[str, str], kept: Mapping[str, Kept], ran: str) -> LaunchError:
    """The failure of a start that no longer gets anywhere, with all that was seen of it. Everything by role."""
    cause = likely(kept, known_only=False)
    what = [
        f"the start has stalled: no progress for {stall.waited_s:.0f} s in phase '{ORDER[stall.phase]}' "
        f"(limit {stall.limit_s:g} s, STALL_TIMEOUT); {_WHY[stall.why]}",
        *(f"{role}: {text}" for role, text in states.items()),
        *([f"most likely: {cause.told()}"] if cause else []),
    ]
    tail = [f"{role}: {line}" for role, each in kept.items() for line in each.tail()]
    known = f"{cause.signature.hint}; " if cause and cause.signature else ""
    first = f"look at {stall.role} first, the rank that is least far" if len(states) > 1 else "invoke logs"
    return LaunchError("\n".join(what), node=stall.role, ran=ran, tail=tail, hint=f"{known}{first}; STALL_TIMEOUT=... waits longer")
