"""From raw facts to the derived part of a receipt, in one place: measuring writes it, `receipt.check` recomputes it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure import measure
from bench.proofs import ProbeResult, health, isolation, judge
from bench.receipt import Payload, Run
from bench.summarize import summarize


def derived_run(run: Run) -> Run:
    """The run with metrics, isolation and health recomputed from its trace and counter readings."""
    metrics = measure(run.trace)
    proofs = {"isolation": isolation(run.before, run.after, metrics), "health": health(run.trace.text + run.trace.reasoning)}
    return run.model_copy(update={"metrics": metrics, **proofs})


def invalid_reasons(runs: Sequence[Run], expected: int) -> tuple[str, ...]:
    """Why the measurement must not be used; empty when it may."""
    reasons = [f"run {run.index}: {run.trace.error}" for run in runs if run.trace.error]
    if len(runs) < expected and not reasons:
        reasons.append(f"only {len(runs)} of {expected} runs were made")
    reasons += [f"run {run.index}: {reason}" for run in runs if not run.trace.error for reason in _doubts(run)]
    return tuple(reasons)


def _doubts(run: Run) -> list[str]:
    found = []
    if run.metrics.n_tokens is None:
        found.append("the server never stated how many tokens it sent (no usage): rates are unknown")
    elif run.metrics.n_tokens and run.metrics.ttft_s is None:
        found.append("tokens were counted but none was seen in the stream")
    if run.isolation.idle is False:
        found.append("other requests ran or waited on the server")
    if run.isolation.own_generation is False or run.isolation.own_prompt is False:
        found.append("the server's token counters moved by more or less than this request: somebody else used it")
    return found


def failed_gates(runs: Sequence[Run], coherence: Sequence[ProbeResult] | None) -> tuple[str, ...]:
    """The output checks that failed: incoherent probe answers, and faults in the measured answers."""
    probes = [f"coherence {result.id}: {result.error or 'wrong or garbled answer'}" for result in coherence or () if not result.passed]
    faults = [f"run {run.index}: {_faults(run)}" for run in runs if not run.trace.error and not run.health.sound]
    return tuple(probes + faults)


def _faults(run: Run) -> str:
    return ", ".join(name for name, found in run.health.model_dump(exclude={"loop"}).items() if found)


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What a reader of the figures must know, though it does not make them invalid."""
    found = [f"run {run.index}: the answer falls into a loop; acceptance is inflated" for run in runs if run.health.loop]
    work = sorted({run.metrics.n_tokens for run in runs if run.metrics.n_tokens is not None})
    if len(work) > 1:
        found.append(f"unequal work: answers of {work[0]} to {work[-1]} tokens")
    if any(run.metrics.token_source == "final_usage" for run in runs):
        found.append("tokens per chunk unknown: the first chunk is assumed to hold one token")
    return tuple(found)


def derived(payload: Payload) -> Payload:
    """The payload with everything that follows from its raw facts recomputed."""
    runs = tuple(derived_run(run) for run in payload.runs)
    good = [run for run in runs if not run.trace.error]
    coherence = None if payload.coherence is None else tuple(judge(p.id, p.text, p.error) for p in payload.coherence)
    reasons = invalid_reasons(runs, payload.protocol.runs * len(payload.protocol.prompts))
    return payload.model_copy(
        update={
            "runs": runs,
            "coherence": coherence,
            "valid": not reasons,
            "invalid_because": reasons,
            "failed_gates": failed_gates(runs, coherence),
            "notes": notes(runs),
            "summary": summarize([r.metrics for r in good], len(runs) - len(good), [(r.before, r.after) for r in good]),
        }
    )
