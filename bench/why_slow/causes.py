"""Naming causes. Pure: evidence, a yardstick and a look at the kit in, causes out, the one that explains most first.

A single stream's rate is acceptance length / step time. So a rate below the yardstick comes from the drafter (fewer tokens accepted
per step), from the cycle (each step takes longer: clocks, fabric, another rank), or both; the share of each is that of the logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.why_slow import clocks
from bench.why_slow.evidence import Evidence
from bench.why_slow.reference import PER_POSITION, PREFILL_TOK_S

# Closer than this to the yardstick is no finding: published kits of the same kind lie 10 % apart (76-84 tok/s structured).
NEAR = 0.90
LENGTH_LOW, STEP_HIGH = 0.85, 1.15
FLIP = 1.3  # slowest step / fastest step over the runs; 63 and 94 ms were reported of one node that flips
WARMING = 0.8  # first run / median of the others
PAGE_TOKENS = 3584  # granularity of the recipe's prefix cache
PINNED_DRAFTS, DEAD_DRAFTS = 100, 64


@dataclass(frozen=True)
class Yardstick:
    """What to hold against: a published row or an own receipt. differs: how the protocols differ, "" when they do not."""

    words: str
    rate: float
    length: float | None
    step_s: float | None
    differs: str


@dataclass(frozen=True)
class Live:
    """A look at the running kit: requests in the server beside ours, and each node's GPU under load."""

    running: int | None = None
    waiting: int | None = None
    foreign_tokens: int | None = None
    nodes: tuple[clocks.NodeClock, ...] = ()


@dataclass(frozen=True)
class Cause:
    """One cause. share: of the slowdown, where it can be put in numbers."""

    id: str
    what: str
    hint: str
    share: float | None = None


@dataclass(frozen=True)
class Known:
    """What else is known: the drafter revision that the recipe pins, and the look at the kit when there was one."""

    drafter_revision: str | None = None
    live: Live | None = None


@dataclass(frozen=True)
class Diagnosis:
    """slow: whether the rate is clearly below the yardstick; None without one."""

    slow: bool | None
    ratio: float | None
    causes: tuple[Cause, ...] = field(default=())


def diagnose(e: Evidence, yardstick: Yardstick | None, known: Known) -> Diagnosis:
    """Every cause that the evidence shows."""
    ratio = e.rate / yardstick.rate if yardstick else None
    found = [*_traffic(e, known.live), *_acceptance_faults(e), *_unsteady(e), *_prefill(e)]
    if yardstick:
        found += _split(e, yardstick, known)
    elif known.live:
        found += _node_causes(known.live)
    ranked = sorted(found, key=lambda cause: -(cause.share if cause.share is not None else 2))
    return Diagnosis(None if ratio is None else ratio < NEAR, ratio, tuple(ranked))


def _traffic(e: Evidence, live: Live | None) -> list[Cause]:
    hint = "measure again when the server is idle; invoke status"
    found = []
    if e.isolated is False:
        found.append(Cause("other-traffic", "the server's counters moved by more than these requests: somebody else used it", hint))
    if live and (live.running or live.waiting or live.foreign_tokens):
        what = (
            f"now {live.running or 0} other requests run, {live.waiting or 0} wait, {live.foreign_tokens or 0} tokens were made for others"
        )
        found.append(Cause("other-traffic-now", what, hint))
    return found


def _acceptance_faults(e: Evidence) -> list[Cause]:
    """Acceptance that is broken rather than low."""
    if e.acceptance_rate == 0 and e.drafts >= DEAD_DRAFTS:
        return [Cause("dead-drafter", f"none of the tokens of {e.drafts} drafts was accepted: a degenerate start", "invoke restart")]
    if e.dialect == "vllm" and len(e.per_position) > 2 and min(e.per_position) >= 0.9999 and e.drafts >= PINNED_DRAFTS:
        return [
            Cause("pinned-acceptance", "acceptance is exactly 1 at every position: the graphs are broken (vLLM 53030)", "invoke restart")
        ]
    usual = PER_POSITION.get(e.phase)
    if usual and e.spec_method == "dflash" and len(usual) == len(e.per_position) and e.per_position[0] > 0.85 * usual[0]:
        last = sum(e.per_position[-3:]) / sum(usual[-3:])
        if last < 0.5:
            what = f"the first position is accepted as usual ({e.per_position[0]:.2f}), the last three at {last:.0%} of it"
            return [Cause("late-positions", what, "no attention backend may be pinned for the drafter (TRITON_ATTN does this)")]
    return []


def _split(e: Evidence, y: Yardstick, known: Known) -> list[Cause]:
    """Drafter or cycle, each with its share of the slowdown."""
    if e.rate >= NEAR * y.rate:
        return _node_causes(known.live) if known.live else []
    total, found = math.log(y.rate / e.rate), []
    if e.length and y.length and e.length < LENGTH_LOW * y.length:
        found.append(_drafter(e, y.length, math.log(y.length / e.length) / total, known))
    if e.step_s and y.step_s and e.step_s > STEP_HIGH * y.step_s:
        found.append(_cycle(e, y.step_s, math.log(e.step_s / y.step_s) / total, known.live))
    return [*found, *(_node_causes(known.live) if known.live else [])]


def _drafter(e: Evidence, usual: float, share: float, known: Known) -> Cause:
    what = f"{e.length or 0:.2f} tokens a step, usual {usual:.2f}; it explains {min(share, 1):.0%} of the slowdown"
    if e.spec_method == "none":
        return Cause("no-speculation", what + " (SPEC_METHOD=none)", "SPEC_METHOD=dflash", share)
    pinned = known.drafter_revision
    if pinned and e.drafter_revision and e.drafter_revision != pinned:
        told = f"; the drafter is {e.drafter} at {e.drafter_revision[:12]}, the pinned one {pinned[:12]}"
        return Cause("wrong-drafter", what + told, f"DFLASH_REVISION={pinned}", share)
    return Cause("drafter", what, "verify the drafter's files (same name, other bytes happened); DFLASH_TOKENS; thinking off", share)


def _cycle(e: Evidence, usual: float, share: float, live: Live | None) -> Cause:
    what = f"one step takes {1000 * (e.step_s or 0):.0f} ms, usual {1000 * usual:.0f}; it explains {min(share, 1):.0%} of the slowdown"
    if e.length and share > 0.85:
        what += "; the drafter is healthy"
    hint = (
        "see the nodes below"
        if live and clocks.wrong(live.nodes)
        else "clocks and power of every node: invoke why-slow --live; fabric: invoke doctor"
    )
    return Cause("cycle", what, hint, share)


def _node_causes(live: Live) -> list[Cause]:
    return [Cause(f"node-{cause}", what, hint, 0.0) for cause, what, hint in clocks.wrong(live.nodes)]


def _unsteady(e: Evidence) -> list[Cause]:
    found = []
    if len(e.steps_s) > 2 and max(e.steps_s) / min(e.steps_s) >= FLIP:
        low, high = 1000 * min(e.steps_s), 1000 * max(e.steps_s)
        what = f"the step time changes from run to run: {low:.0f} to {high:.0f} ms: a node that flips between power states, or other load"
        found.append(Cause("flips", what, "watch the clocks of every node: invoke why-slow --live"))
    if len(e.rates) > 2 and e.rates[0] < WARMING * statistics.median(e.rates[1:]):
        what = (
            f"the first run was slow ({e.rates[0]:.1f}, the others {statistics.median(e.rates[1:]):.1f}): the server was still warming up"
        )
        found.append(Cause("warming-up", what, "wait for invoke up to return, then measure again"))
    return found


def _prefill(e: Evidence) -> list[Cause]:
    found = []
    prompt = e.prompt_tokens or 0
    if not e.salted and prompt >= PAGE_TOKENS and e.cached_share is not None:
        possible = prompt // PAGE_TOKENS * PAGE_TOKENS / prompt
        if e.cached_share < 0.5 * possible:
            what = f"{e.cached_share:.0%} of the prompt came from the prefix cache, {possible:.0%} could (pages of {PAGE_TOKENS} tokens)"
            found.append(Cause("prefix-miss", what, "fewer long sessions at a time; does the beginning of the prompt change?"))
    worst = e.ttft_max_s if e.concurrency > 1 else e.ttft_s
    uncached = prompt * (1 - (e.cached_share or 0))
    due = 1.0 + 3 * max(1, e.concurrency) * uncached / PREFILL_TOK_S
    if worst is not None and worst > due and e.dialect == "vllm":
        what = f"first tokens came after {worst:.1f} s; {uncached:.0f} prompt tokens should take {uncached / PREFILL_TOK_S:.1f} s"
        found.append(Cause("prefill-starved", what + ": they waited for others", "mixed prefill 'fair'; LONG_PREFILL_TOKEN_THRESHOLD=3584"))
    return found


def describe(nodes: Sequence[clocks.NodeClock]) -> list[str]:
    """One line for each node that was looked at."""
    return [f"{n.node}: SM {n.sm_mhz} MHz, {n.watts} W, {n.celsius} C, load {n.utilisation} %" for n in nodes]
