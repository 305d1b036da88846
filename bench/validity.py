"""Why a measurement must not be used, which output gates failed, and what a reader must know. Pure functions over a derived receipt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.proofs import Isolation, ProbeResult
from bench.receipt import Payload, Protocol, Run
from bench.rounds import COLD_ROLES, Round

LATE_S = 0.1  # an open-loop request sent later than this was not sent when it was due
_TARGET_SHARE, _TARGET_TOKENS = 0.005, 4  # a prompt's length is fitted to half a percent, but salts differ by a few tokens


def expected_requests(protocol: Protocol) -> int:
    """How many measured requests make this protocol."""
    return protocol.requests if protocol.requests is not None else protocol.runs * len(protocol.prompts)


def invalid_reasons(payload: Payload) -> tuple[str, ...]:
    """Empty when the measurement may be used. `payload`'s runs and rounds are derived already."""
    runs, expected = payload.runs, expected_requests(payload.protocol)
    reasons = [f"{_name(run)}: {run.trace.error}" for run in runs if run.trace.error]
    if len(runs) < expected and not reasons:
        reasons.append(f"only {len(runs)} of {expected} runs were made")
    good = [run for run in runs if not run.trace.error]
    reasons += [f"{_name(run)}: {reason}" for run in good for reason in _doubts(run, payload.protocol)]
    if not any(run.trace.error for run in runs):
        reasons += [f"round {one.index}: {reason}" for one in payload.rounds for reason in _round_doubts(one)]
        reasons += unequal_work(good, payload.protocol)
    return tuple(reasons)


def _name(run: Run) -> str:
    return f"run {run.index}" if run.place is None or run.place.round is None else f"run {run.index} (round {run.place.round})"


def _doubts(run: Run, protocol: Protocol) -> Iterator[str]:
    if run.metrics.n_tokens is None:
        yield "the server never stated how many tokens it sent (no usage): rates are unknown"
    elif run.metrics.n_tokens and run.metrics.ttft_s is None:
        yield "tokens were counted but none was seen in the stream"
    yield from _foreign(run.isolation, "this request")
    if run.hygiene and run.hygiene.behind:
        yield f"the client fell behind: {run.hygiene.reason}"
    if protocol.salted and run.place and run.place.role in COLD_ROLES and run.cache and run.cache.label not in (None, "cold"):
        yield f"{run.cache.cached_tokens} of {run.metrics.prompt_tokens} prompt tokens came from the prefix cache, though salted"
    if run.place and run.place.due_s is not None and run.place.start_s - run.place.due_s > LATE_S:
        yield f"the client sent it {run.place.start_s - run.place.due_s:.3f} s late"


def _foreign(isolation: Isolation, whose: str) -> Iterator[str]:
    if isolation.idle is False:
        yield "other requests ran or waited on the server"
    if isolation.own_generation is False or isolation.own_prompt is False:
        yield f"the server's token counters moved by more or less than {whose}: somebody else used it"


def _round_doubts(one: Round) -> Iterator[str]:
    if one.isolation:
        yield from _foreign(one.isolation, "these requests")
    if one.hygiene and one.hygiene.behind:
        yield f"the client fell behind: {one.hygiene.reason}"


def unequal_work(runs: Sequence[Run], protocol: Protocol) -> list[str]:
    """Answers that ended by themselves, or differ in length within a role, where the protocol does not allow it."""
    if protocol.natural_end is not False:
        return []
    early = [run for run in runs if run.trace.finish_reason != "length"]
    if early:
        first = early[0]
        what = f"{len(early)} of {len(runs)} answers did not reach their token limit ({_name(first)}: {first.metrics.n_tokens} tokens, "
        return [what + f"{first.trace.finish_reason}): unequal work; lower --max-tokens"]
    roles = sorted({run.place.role for run in runs if run.place})
    counts = {role: sorted({run.metrics.n_tokens or 0 for run in runs if run.place and run.place.role == role}) for role in roles}
    return [f"unequal work: answers ({role}) of {n[0]} to {n[-1]} tokens" for role, n in counts.items() if len(n) > 1]


def failed_gates(runs: Sequence[Run], coherence: Sequence[ProbeResult] | None) -> tuple[str, ...]:
    """The output checks that failed: incoherent probe answers, and faults in the measured answers."""
    probes = [f"coherence {result.id}: {result.error or 'wrong or garbled answer'}" for result in coherence or () if not result.passed]
    faults = [f"run {run.index}: {_faults(run)}" for run in runs if not run.trace.error and not run.health.sound]
    return tuple(probes + faults)


def _faults(run: Run) -> str:
    return ", ".join(name for name, found in run.health.model_dump(exclude={"loop"}).items() if found)


def notes(payload: Payload) -> tuple[str, ...]:
    """What a reader of the figures must know, though it does not make them invalid."""
    return (*_answer_notes(payload), *_prompt_notes(payload), *_round_notes(payload.rounds))


def _answer_notes(payload: Payload) -> Iterator[str]:
    runs = payload.runs
    yield from (f"run {run.index}: the answer falls into a loop; acceptance is inflated" for run in runs if run.health.loop)
    work = sorted({run.metrics.n_tokens for run in runs if run.metrics.n_tokens is not None})
    if len(work) > 1 and payload.protocol.natural_end is not False:
        yield f"unequal work: answers of {work[0]} to {work[-1]} tokens"
    if any(run.metrics.token_source == "final_usage" for run in runs):
        yield "the server states no tokens per chunk: a decode rate is given only where there are about as many chunks as tokens"


def _prompt_notes(payload: Payload) -> Iterator[str]:
    placed = [run for run in payload.runs if run.place and not run.trace.error]
    if placed and all(run.cache is None or run.cache.label is None for run in placed):
        yield "cold or warm is not proven: the server states no cached tokens"
    if any(run.place and run.place.role == "repeat" and run.cache and run.cache.label == "cold" for run in placed):
        yield "a repeated prompt was not served from a prefix cache"
    texts = [sent.sha256 for sent in payload.protocol.prompts]
    if payload.protocol.concurrency > 1 and len(set(texts)) < len(texts):
        yield f"{len(texts)} lanes share {len(set(texts))} texts and differ only in their salt"
    for run in placed:
        target, got = run.place.target_tokens if run.place else None, run.metrics.prompt_tokens
        if target and got is not None and abs(got - target) > max(_TARGET_TOKENS, _TARGET_SHARE * target):
            yield f"{_name(run)}: the prompt has {got} tokens, {target} were wanted"


def _round_notes(rounds: Sequence[Round]) -> Iterator[str]:
    queued = [one.index for one in rounds if one.group and one.group.lanes > 1 and one.group.steady_s is None]
    if queued:
        yield f"in {len(queued)} of {len(rounds)} rounds the lanes never decoded all at once: the server queued them; no steady rate"
    unknown = [one for one in rounds if one.group and one.group.steady_s is not None and one.group.steady_tok_s is None]
    if unknown:
        yield "no steady rate: the server does not state the tokens of each chunk"
