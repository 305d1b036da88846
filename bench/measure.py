"""Metrics of one request, derived from its Trace by pure functions. Unknown is None, never a guess.

Tokens are counted by what chunks state (per-chunk usage, llama.cpp timings, token ids), else by the final usage; chunks are
never counted as tokens: under speculative decoding one chunk may hold many. A role-only chunk is not a token.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal

from bench.trace import Fact, Trace

TokenSource = Literal["chunk_usage", "chunk_timings", "token_ids", "final_usage"]
_FIRST_CHUNK_ERROR = 0.01  # of the decode rate, from not knowing how many tokens the first chunk holds
_FROM_CHUNKS: dict[str | None, TokenSource] = {"usage": "chunk_usage", "timings": "chunk_timings", "token_ids": "token_ids"}


class RequestMetrics(Fact):
    """Seconds, tokens and tokens per second of one request.

    ttfr_s: first chunk of any kind. ttft_s: first chunk that holds a token (see Trace.token_chunks). e2el_s: last such chunk.
    tpot_s: (e2el - ttft) / (n - 1), n without reasoning tokens that were counted but not streamed.
    decode_tok_s: (tokens at the last chunk - tokens at the first) / (their times' difference). With token_source final_usage the first
    chunk counts as one token where the number of chunks proves that this is off by 1 % at most; else the rate is unknown.
    itl_*: gaps between chunks that hold tokens.
    prefill_tok_s: prompt tokens that were not cached / ttft.
    """

    n_tokens: int | None
    token_source: TokenSource | None
    first_chunk_tokens: int | None
    ttfr_s: float | None
    ttft_s: float | None
    e2el_s: float | None
    tpot_s: float | None
    decode_tok_s: float | None
    itl_p50_s: float | None
    itl_p90_s: float | None
    itl_p99_s: float | None
    itl_max_s: float | None
    tokens_per_chunk: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    prefill_tok_s: float | None


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (0..1) with linear interpolation between order statistics (numpy's default); None when empty."""
    if not values:
        return None
    ordered = sorted(values)
    at = (len(ordered) - 1) * q
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ratio(over: float | None, under: float | None) -> float | None:
    """over / under; None where either is unknown or `under` is not positive."""
    return None if over is None or not under or under <= 0 else over / under


def _counts(trace: Trace, token_chunks: list[int]) -> tuple[TokenSource | None, int | None, list[int] | None]:
    """Token source, total tokens, and the cumulative tokens at each token chunk (None when only the total is known)."""
    stated = [trace.tokens[at] for at in token_chunks]
    final = trace.usage.completion_tokens if trace.usage else None
    known = [n for n in stated if n is not None]
    if stated and len(known) == len(stated):
        return _FROM_CHUNKS[trace.chunk_counts], final if final is not None else known[-1], known
    return ("final_usage" if final is not None else None), final, None


def _hidden(trace: Trace) -> int:
    """Reasoning tokens that the server counts but did not stream: they were made before the first chunk came."""
    stated = trace.usage.reasoning_tokens if trace.usage else None
    return 0 if stated is None or "k" in trace.kinds else stated


def _decoded(shown: int | None, counts: list[int] | None, chunks: int) -> int | None:
    """Tokens that arrived after the first of `chunks` token chunks, of `shown` that were streamed.

    Each chunk holds at least one token, so of a total alone the first holds 1 to shown - chunks + 1 of them.
    """
    if counts is not None:
        return counts[-1] - counts[0]
    if shown is None or shown - chunks > _FIRST_CHUNK_ERROR * (shown - 1):
        return None
    return shown - 1


def measure(trace: Trace) -> RequestMetrics:
    """All metrics of one request. A trace that ended in an error still gives what its chunks prove."""
    token_chunks = trace.token_chunks()
    times = [trace.t_s[at] for at in token_chunks]
    source, n_tokens, counts = _counts(trace, token_chunks)
    first, last = (times[0], times[-1]) if times else (None, None)
    span = last - first if first is not None and last is not None and len(times) > 1 else None
    gaps = sorted(map(operator.sub, times[1:], times))  # sorted once: each quantile sorts again, which is cheap then
    shown = None if n_tokens is None else max(0, n_tokens - _hidden(trace))
    prompt = trace.usage.prompt_tokens if trace.usage else None
    cached = trace.usage.cached_tokens if trace.usage else None
    return RequestMetrics(
        n_tokens=n_tokens,
        token_source=source,
        first_chunk_tokens=counts[0] if counts else None,
        ttfr_s=trace.t_s[0] if trace.t_s else None,
        ttft_s=first,
        e2el_s=last,
        tpot_s=ratio(span, shown - 1 if shown else None),
        decode_tok_s=ratio(_decoded(shown, counts, len(times)), span),
        itl_p50_s=quantile(gaps, 0.5),
        itl_p90_s=quantile(gaps, 0.9),
        itl_p99_s=quantile(gaps, 0.99),
        itl_max_s=max(gaps, default=None),
        tokens_per_chunk=ratio(shown, len(times)),
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefill_tok_s=ratio(None if prompt is None or cached is None else prompt - cached, first),
    )
