"""The result JSON of `vllm bench serve`: its keys, our figures.

itl is the gap between chunks that hold tokens, as there; peak throughput, which counts chunks there, is left null. duration: the time
during which measured requests were open. A request without a stated number of tokens makes totals null instead of smaller.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from bench.measure import quantile, ratio
from bench.receipt import Receipt, Run


def result(receipt: Receipt) -> dict[str, Any]:
    """One receipt. Times of single requests in seconds, the statistics in milliseconds, as that tool has them."""
    good = [run for run in receipt.runs if not run.trace.error]
    return {**_identity(receipt), **_totals(receipt, good), **_requests(receipt, good), **_statistics(good), **_speculation(receipt)}


def _identity(receipt: Receipt) -> dict[str, Any]:
    shape = receipt.protocol.shape
    rate = shape.rate_req_s if shape else None
    return {
        "date": receipt.created_utc,
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": receipt.arm,
        "model_id": receipt.model,
        "tokenizer_id": None,
        "num_prompts": len(receipt.runs),
        "request_rate": rate if rate is not None else "inf",
        "burstiness": 1.0 if rate is not None else None,
        "max_concurrency": None if rate is not None else receipt.protocol.concurrency,
    }


def duration_s(receipt: Receipt, good: Sequence[Run]) -> float | None:
    """Rounds from first start to last token, and requests that ran alone each by themselves."""
    parts: list[float | None] = []
    for index in [None, *(one.index for one in receipt.rounds)]:
        runs = [run for run in good if (run.place.round if run.place else None) == index]
        ends = [run.metrics.e2el_s for run in runs]
        if index is None:
            parts += ends
        elif runs and None not in ends:
            starts = [run.place.start_s if run.place else 0.0 for run in runs]
            parts.append(max(a + (b or 0.0) for a, b in zip(starts, ends, strict=True)) - min(starts))
    return sum(part or 0.0 for part in parts) if parts and None not in parts else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return sum(value or 0 for value in known) if known and None not in known else None


def _totals(receipt: Receipt, good: Sequence[Run]) -> dict[str, Any]:
    seconds = duration_s(receipt, good)
    given, made = _sum(run.metrics.prompt_tokens for run in good), _sum(run.metrics.n_tokens for run in good)
    goodput = receipt.summary.goodput
    return {
        "duration": seconds,
        "completed": len(good),
        "failed": len(receipt.runs) - len(good),
        "total_input_tokens": given,
        "total_output_tokens": made,
        "request_throughput": ratio(len(good), seconds),
        "request_goodput": ratio(goodput.good, seconds) if goodput else None,
        "output_throughput": ratio(made, seconds),
        "total_token_throughput": None if given is None or made is None else ratio(given + made, seconds),
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": goodput.in_flight_max if goodput else receipt.protocol.concurrency,
        "rtfx": None,  # of sound: seconds of it per second
    }


def _requests(receipt: Receipt, good: Sequence[Run]) -> dict[str, Any]:
    return {
        "input_lens": [run.metrics.prompt_tokens for run in good],
        "output_lens": [run.metrics.n_tokens for run in good],
        "ttfts": [run.metrics.ttft_s for run in good],
        "itls": [_gaps(run) for run in good],
        "latencies": [run.metrics.e2el_s for run in good],
        "start_times": [run.place.start_s if run.place else None for run in good],
        "queue_times": [_late_s(run) for run in good],
        "generated_texts": [run.trace.text for run in good],
        "errors": [run.trace.error or "" for run in receipt.runs],
    }


def _late_s(run: Run) -> float | None:
    """How long after it was due the client sent it; None of a request that was due at no time of its own."""
    return None if run.place is None or run.place.due_s is None else run.place.start_s - run.place.due_s


def _gaps(run: Run) -> list[float]:
    return [later - earlier for earlier, later in pairwise(run.trace.t_s[at] for at in run.trace.token_chunks())]


def _statistics(good: Sequence[Run]) -> dict[str, float | None]:
    values: dict[str, Sequence[float | None]] = {
        "ttft": [run.metrics.ttft_s for run in good],
        "tpot": [run.metrics.tpot_s for run in good],
        "itl": [gap for run in good for gap in _gaps(run)],
        "e2el": [run.metrics.e2el_s for run in good],
    }
    return {name: value for metric, some in values.items() for name, value in _four(metric, some).items()}


def _four(metric: str, values: Sequence[float | None]) -> dict[str, float | None]:
    known = [1000 * value for value in values if value is not None]
    found = {
        "mean": statistics.fmean(known) if known else None,
        "median": statistics.median(known) if known else None,
        "std": statistics.pstdev(known) if known else None,
        "p99": quantile(known, 0.99),
    }
    return {f"{name}_{metric}_ms": value for name, value in found.items()}


def _speculation(receipt: Receipt) -> dict[str, Any]:
    """Only where something was drafted, as there; the rate is in percent there."""
    found = receipt.summary.acceptance
    if found is None:
        return {}
    return {
        "spec_decode_acceptance_rate": 100 * found.acceptance_rate,
        "spec_decode_acceptance_length": found.acceptance_length,
        "spec_decode_num_drafts": found.drafts,
        "spec_decode_draft_tokens": found.draft_tokens,
        "spec_decode_accepted_tokens": found.accepted_tokens,
        "spec_decode_per_position_acceptance_rates": list(found.per_position),
    }
