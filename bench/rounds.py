"""Facts about requests that ran together, and about what each request of a phase was there for."""

from __future__ import annotations

from bench.counters import Counters
from bench.goodput import Goodput, Slo
from bench.groups import GroupMetrics
from bench.hygiene import Hygiene
from bench.interference import Interference
from bench.proofs import Isolation
from bench.trace import Fact

# The roles whose prompt carries a fresh salt and so must not come from a prefix cache.
COLD_ROLES = frozenset({"lane", "first", "incumbent", "newcomer", "newcomer alone", "arrival", "turn 1"})


class Place(Fact):
    """What a request was there for. round: None when it ran alone.

    start_s: when it was sent, seconds after its round began. due_s: when it should have been (open loop). target_tokens: how long
    its prompt was to be.
    """

    role: str
    lane: int = 0
    round: int | None = None
    start_s: float = 0.0
    due_s: float | None = None
    target_tokens: int | None = None


class Round(Fact):
    """Requests that overlapped share these: counter readings around all of them, and the client's health meanwhile.

    isolation, group, interference and goodput follow from the facts; each is None where the phase has none.
    """

    index: int
    before: Counters | None
    after: Counters | None
    hygiene: Hygiene | None
    isolation: Isolation | None = None
    group: GroupMetrics | None = None
    interference: Interference | None = None
    goodput: Goodput | None = None


class Shape(Fact):
    """The parameters of a phase beside its prompts; None where it has no such parameter.

    context_tokens: the context length the ladder was scaled to. newcomer_tokens, after_chunks: the mixed phase's late prompt, and how
    many chunks each incumbent has had when it is sent. turns, turn_tokens: agents. rate_req_s, slo, seed: open loop.
    """

    context_tokens: int | None = None
    newcomer_tokens: int | None = None
    after_chunks: int | None = None
    turns: int | None = None
    turn_tokens: int | None = None
    rate_req_s: float | None = None
    slo: Slo | None = None
    seed: int | None = None
