"""Choosing the yardstick and putting the answer into words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.receipt import Receipt
from bench.why_slow import evidence
from bench.why_slow.causes import Diagnosis, Yardstick, describe
from bench.why_slow.clocks import NodeClock
from bench.why_slow.evidence import Evidence
from bench.why_slow.reference import of, published

OURS = "ours: fresh boot, salted prompts, tokens as the chunks state them, first to last token"


def yardstick(e: Evidence) -> Yardstick | None:
    """The newest published default of the same kit and phase; None above one stream, or without a row.

    Where only an older row states the acceptance, the length is that row's and the step time follows from both: the drafter is the same.
    """
    row = published(e.kit, e.phase)
    if row is None or e.concurrency > 1:
        return None
    stated = next((each for each in of(e.kit, e.phase) if each.accepted_per_step is not None), None)
    length = None if stated is None or stated.accepted_per_step is None else 1 + stated.accepted_per_step
    words = f"{row}" if stated in (None, row) else f"{row}; acceptance as published with {stated}"
    step_s = None if length is None else length / row.decode_tok_s
    return Yardstick(words, row.decode_tok_s, length, step_s, f"published by {row.protocol}; {OURS}")


def own(receipt: Receipt, e: Evidence) -> Yardstick | None:
    """An own receipt as the yardstick for the evidence `e`; its protocol is compared field by field."""
    other = evidence.of(receipt)
    if other is None:
        return None
    unlike = [name for name in ("kit", "phase", "concurrency", "salted") if getattr(other, name) != getattr(e, name)]
    differs = f"the receipts differ in {', '.join(unlike)}" if unlike else ""
    return Yardstick(f"{other.rate:.1f} tok/s (receipt {other.id})", other.rate, other.length, other.step_s, differs)


def text(e: Evidence, found: Diagnosis, y: Yardstick | None, nodes: Sequence[NodeClock] = ()) -> str:
    """The answer: what was measured, against what, the causes in order."""
    lines = [f"receipt {e.id}: kit {e.kit}, {e.phase}, {e.figure} {e.rate:.1f}{_parts(e)}"]
    if y is None:
        lines.append("no published single-stream figure for this kit and phase (--against RECEIPT takes one of your own)")
    else:
        lines.append(f"against {y.words}")
        lines += [f"PROTOCOLS DIFFER: {y.differs}: a few percent mean nothing"] if y.differs else []
    lines += describe(nodes)
    lines.append(_verdict(found))
    for cause in found.causes:
        lines += [f"{cause.id}: {cause.what}", f"  try: {cause.hint}"]
    return "\n".join(lines)


def _parts(e: Evidence) -> str:
    length = "" if e.length is None else f", acceptance length {e.length:.2f}"
    return f"{length}{'' if e.step_s is None else f', step {1000 * e.step_s:.0f} ms'}"


def _verdict(found: Diagnosis) -> str:
    if found.ratio is None:
        return "verdict: no yardstick" + ("; what is out of the ordinary:" if found.causes else ", and nothing out of the ordinary")
    if not found.slow:
        return f"verdict: not slow ({found.ratio:.0%} of it)" + ("; out of the ordinary:" if found.causes else "")
    return f"verdict: slow ({found.ratio:.0%} of it)" + ("" if found.causes else "; the receipt does not show why: invoke why-slow --live")
