"""From raw facts to the derived part of a receipt, in one place: measuring writes it, `receipt.check` recomputes it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cells import Cell, Member, cells
from bench.counters import delta
from bench.goodput import Arrival, Goodput, goodput
from bench.groups import GroupMetrics, Lane, group
from bench.interference import Interference, interference
from bench.measure import measure
from bench.proofs import CacheProof, cache_proof, health, isolation, judge
from bench.receipt import Payload, Run
from bench.rounds import Round
from bench.spread import spread
from bench.summarize import Summary, summarize, summarize_goodput, summarize_groups, summarize_mixed
from bench.trace import Usage
from bench.validity import failed_gates, invalid_reasons, notes


def derived_run(run: Run, warm_up: Usage | None) -> Run:
    """The run with metrics and proofs recomputed from its trace and counter readings; one of a round has no readings of its own."""
    metrics = measure(run.trace)
    proofs = {
        "isolation": isolation(run.before, run.after, metrics),
        "health": health("\n".join(filter(None, (run.trace.reasoning, run.trace.text)))),  # apart, as words, and in the order they came
    }
    return run.model_copy(update={"metrics": metrics, **proofs, "cache": _cache(run.model_copy(update={"metrics": metrics}), warm_up)})


def _cache(run: Run, warm_up: Usage | None) -> CacheProof | None:
    if run.place is None:
        return None
    return cache_proof(run.metrics, delta(run.before, run.after).cached_tokens, warm_up.prompt_tokens if warm_up else None)


def derived_round(one: Round, payload: Payload) -> Round:
    """The round with its proofs and figures recomputed; `payload`'s runs are derived already."""
    runs = _of_round(payload.runs, one.index)
    found = {
        "isolation": isolation(one.before, one.after, *(run.metrics for run in runs)),
        "group": _group(runs),
        "interference": _interference(runs, payload.runs),
        "goodput": _goodput(runs, payload),
    }
    return one.model_copy(update=found)


def _of_round(runs: Sequence[Run], index: int) -> list[Run]:
    return [run for run in runs if run.place and run.place.round == index]


def _role(run: Run) -> str | None:
    return run.place.role if run.place else None


def lane(run: Run) -> Lane:
    """The run on its round's clock."""
    return Lane(run.place.start_s if run.place else 0.0, run.trace, run.metrics)


def _group(runs: Sequence[Run]) -> GroupMetrics | None:
    lanes = [lane(run) for run in runs if _role(run) == "lane"]
    return group(lanes) if len(lanes) > 1 else None


def _interference(runs: Sequence[Run], all_runs: Sequence[Run]) -> Interference | None:
    """Round r's newcomer is compared with the one that ran alone just before it: the last such run in order."""
    newcomer = next((run for run in runs if _role(run) == "newcomer"), None)
    if newcomer is None:
        return None
    alone = [run for run in all_runs if _role(run) == "newcomer alone" and run.index < newcomer.index and not run.trace.error]
    incumbents = [lane(run) for run in runs if _role(run) == "incumbent"]
    return interference(incumbents, lane(newcomer), alone[-1].metrics.ttft_s if alone else None)


def _goodput(runs: Sequence[Run], payload: Payload) -> Goodput | None:
    slo = payload.protocol.shape.slo if payload.protocol.shape else None
    arrivals = [Arrival(run.place.due_s, lane(run)) for run in runs if run.place and run.place.due_s is not None]
    return goodput(arrivals, slo) if slo and arrivals else None


def _summary(runs: Sequence[Run], rounds: Sequence[Round]) -> Summary:
    good = [run for run in runs if not run.trace.error]
    readings = [(run.before, run.after) for run in good] + [(one.before, one.after) for one in rounds]
    plain = summarize([run.metrics for run in good], len(runs) - len(good), readings)
    moved = [n for one in rounds if (n := delta(one.before, one.after).preemptions) is not None]
    return plain.model_copy(
        update={
            "prefill_tok_s": plain.prefill_tok_s or spread(run.cache.prefill_tok_s if run.cache else None for run in good),
            "group": summarize_groups([one.group for one in rounds if one.group], sum(moved) if moved else None),
            "cells": _cells(good),
            "mixed": summarize_mixed([one.interference for one in rounds if one.interference]),
            "goodput": summarize_goodput([one.goodput for one in rounds if one.goodput]),
        }
    )


def _cells(good: Sequence[Run]) -> tuple[Cell, ...] | None:
    """None where all requests were asked for the same."""
    members = [Member(run.place.role, run.metrics, run.cache) for run in good if run.place]
    return cells(members) if len({member.asked for member in members}) > 1 else None


def derived(payload: Payload) -> Payload:
    """The payload with everything that follows from its raw facts recomputed."""
    runs = tuple(derived_run(run, payload.warm_up) for run in payload.runs)
    staged = payload.model_copy(update={"runs": runs})
    staged = staged.model_copy(update={"rounds": tuple(derived_round(one, staged) for one in payload.rounds)})
    coherence = None if payload.coherence is None else tuple(judge(p.id, p.text, p.error) for p in payload.coherence)
    reasons = invalid_reasons(staged)
    return staged.model_copy(
        update={
            "coherence": coherence,
            "valid": not reasons,
            "invalid_because": reasons,
            "failed_gates": failed_gates(runs, coherence),
            "notes": notes(staged),
            "summary": _summary(runs, staged.rounds),
        }
    )
