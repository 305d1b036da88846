"""One row of the accuracy receipt: a client at one concurrency and rate, its figures beside the truth."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench import lean
from bench.accuracy.truth import QUANTILES, lateness_s, mean, truth
from bench.errors import BenchError
from bench.hygiene import READS, Hygiene, Watch
from bench.measure import measure, quantile
from bench.request import Deadlines, Endpoint, Request
from bench.scripted import Script, ScriptedServer, Sent
from bench.trace import Fact, Trace

Client = Literal["lean", "lean-asyncio", "openai"]
FIRST_S = 0.8  # the first token of a stream, late enough that all streams have begun
_APART_S = 0.005


@dataclass(frozen=True)
class Level:
    """`streams` at once, all together `tok_s` tokens per second for about `seconds`."""

    streams: int
    tok_s: int
    seconds: float = 4.0

    def script(self) -> Script:
        return Script(tokens=max(2, round(self.tok_s * self.seconds / self.streams)), gap_s=self.streams / self.tok_s, first_s=FIRST_S)


class Error(Fact):
    """Client minus truth. *_s: seconds, over the streams (ttft) or between the quantiles of all gaps (itl). *_rel: relative.
    read_lag: from a chunk's send to its stamp in the client, over all chunks; request_lag_max: from a request's write to when the
    server had read it, came_lag_max: to when it had come, by the kernel's stamp; None: no client's zero is known, or the receipt is
    older than this figure. The TTFT is held against a truth that begins where came_lag ends; in receipts without came_lag, where
    request_lag ends, so that its error holds the server's delay too."""

    ttft_p50_s: float
    ttft_max_s: float
    tpot_max_rel: float
    itl_p50_s: float
    itl_p90_s: float
    itl_p99_s: float
    decode_max_rel: float
    output_rel: float
    tokens_lost: int
    read_lag_p50_s: float | None
    read_lag_p99_s: float | None
    read_lag_max_s: float | None
    request_lag_max_s: float | None = None
    came_lag_max_s: float | None = None


class Row(Fact):
    """server_late_*: how late the server was against its own script, which is not counted against the client.

    cpu_s_per_1000: CPU time of the client's process from before the first request to the last finished trace. parse_cpu_s_per_1000:
    what of it went into parsing the reads that the lean client had kept; None for another client."""

    client: Client
    streams: int
    tok_s: int
    tokens: int
    reached_tok_s: float
    error: Error
    cpu_s_per_1000: float
    parse_cpu_s_per_1000: float | None = None
    server_late_p99_s: float | None
    server_late_max_s: float | None
    hygiene: Hygiene


@dataclass(frozen=True)
class Seen:
    """What a client reports: one trace per stream, and where their zeros lie (CLOCK_MONOTONIC ns; empty: unknown)."""

    traces: tuple[Trace, ...]
    begins_ns: tuple[int, ...]
    cpu_s: float
    hygiene: Hygiene
    parse_s: float | None = None


def row(client: Client, level: Level) -> Row:
    """Run one level with the client on one core and the server on another. Raises BenchError if a stream breaks."""
    cores = sorted(os.sched_getaffinity(0))
    with pinned(cores[0] if len(cores) > 1 else None), ScriptedServer(level.script(), cores[-1] if len(cores) > 1 else None) as server:
        seen = run(client, level, Endpoint(server.base_url, None, "vllm"))
        sents = server.chats()
    late_p99, late_max = lateness_s(sents)
    tokens = sum(truth(sent).n_tokens for sent in sents)
    return Row(
        client=client,
        streams=level.streams,
        tok_s=level.tok_s,
        tokens=tokens,
        reached_tok_s=round(tokens / _span_s(sents), 1),
        error=compare(seen, sents),
        cpu_s_per_1000=round(seen.cpu_s / tokens * 1000, 5),
        parse_cpu_s_per_1000=None if seen.parse_s is None else round(seen.parse_s / tokens * 1000, 5),
        server_late_p99_s=late_p99,
        server_late_max_s=late_max,
        hygiene=seen.hygiene,
    )


def _span_s(sents: Sequence[Sent]) -> float:
    return (max(sent.chunks[-1][0] for sent in sents) - min(sent.chunks[0][0] for sent in sents)) / 1e9


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """This process on one core for the time of the block."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(client: Client, level: Level, endpoint: Endpoint) -> Seen:
    runner: Callable[[Coroutine[Any, Any, Seen]], Seen] = lean.run if client == "lean" else asyncio.run
    seen = runner(_streams(client, level, endpoint))
    broken = next((trace.error for trace in seen.traces if trace.error), None)
    if broken:
        raise BenchError(f"accuracy: a stream of the {client} client broke: {broken}\ntry: again on a machine with nothing else to do")
    return seen


async def _streams(client: Client, level: Level, endpoint: Endpoint) -> Seen:
    """All streams, each begun a moment after the one before: the server then takes each request at once, and its log tells the
    true time to the first token. Together they would wait for each other in the server, before its clock starts."""
    request = Request("any", "hello", level.script().tokens)
    begins: dict[int, int] = {}
    send = lean.stream
    if client == "openai":
        from bench import openai_stream  # its code is loaded for its own rows only: it is large, and ours are measured first

        send = openai_stream.stream

    async def one(number: int) -> Trace:
        await asyncio.sleep(number * _APART_S)
        return await send(endpoint, request, Deadlines(), None, lambda at_ns: begins.__setitem__(number, at_ns))

    cpu_s, parse_s = time.process_time(), READS.parse_s
    with Watch() as watch:
        traces = await asyncio.gather(*(one(number) for number in range(level.streams)))
    cpu_s = time.process_time() - cpu_s
    parsed_s = None if client == "openai" else READS.parse_s - parse_s
    return Seen(tuple(traces), tuple(begins[number] for number in sorted(begins)), cpu_s, watch.report(), parsed_s)


def compare(seen: Seen, sents: Sequence[Sent]) -> Error:
    """Client against truth; the streams are matched in order of their beginning. Raises BenchError if their numbers differ."""
    if len(seen.traces) != len(sents):
        raise BenchError(f"accuracy: {len(seen.traces)} streams were asked for, the server saw {len(sents)}\ntry: again")
    true = [truth(sent) for sent in sents]
    found = [measure(trace) for trace in seen.traces]
    ttft = [abs((one.ttft_s or 0.0) - real.ttft_s) for one, real in zip(found, true, strict=True)]
    tpot = [relative(one.tpot_s, real.tpot_s) for one, real in zip(found, true, strict=True)]
    decode = [relative(one.decode_tok_s, real.decode_tok_s) for one, real in zip(found, true, strict=True)]
    gaps, true_gaps = [gap for trace in seen.traces for gap in _gaps(trace)], [gap for real in true for gap in real.gaps_s]
    itl = [abs((quantile(gaps, q) or 0.0) - (quantile(true_gaps, q) or 0.0)) for q in QUANTILES]
    lag = _read_lag(seen, sents)
    return Error(
        ttft_p50_s=_micro(quantile(ttft, 0.5)),
        ttft_max_s=_micro(max(ttft)),
        tpot_max_rel=round(max(tpot), 6),
        itl_p50_s=_micro(itl[0]),
        itl_p90_s=_micro(itl[1]),
        itl_p99_s=_micro(itl[2]),
        decode_max_rel=round(max(decode), 6),
        output_rel=round(_output_error(seen, sents), 6),
        tokens_lost=sum(real.n_tokens - (one.n_tokens or 0) for one, real in zip(found, true, strict=True)),
        read_lag_p50_s=None if lag is None else _micro(quantile(lag, 0.5)),
        read_lag_p99_s=None if lag is None else _micro(quantile(lag, 0.99)),
        read_lag_max_s=None if lag is None else _micro(max(lag)),
        request_lag_max_s=_longest_s(seen, [sent.received_ns for sent in sents]),
        came_lag_max_s=_longest_s(seen, [sent.asked_ns for sent in sents]),
    )


def _micro(value: float | None) -> float:
    assert value is not None
    return round(value, 6)


def relative(found: float | None, true: float | None) -> float:
    """|found / true - 1|; a figure that is missing is wholly wrong."""
    return 1.0 if found is None or not true else abs(found / true - 1)


def _gaps(trace: Trace) -> list[float]:
    times = [trace.t_s[at] for at in trace.token_chunks()]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _read_lag(seen: Seen, sents: Sequence[Sent]) -> list[float] | None:
    """From each chunk's send to its stamp in the client."""
    if not seen.begins_ns:
        return None
    lag = []
    for begin_ns, trace, sent in zip(seen.begins_ns, seen.traces, sents, strict=True):
        stamps = [begin_ns / 1e9 + trace.t_s[at] for at in trace.token_chunks()]
        lag += [stamp - at_ns / 1e9 for stamp, (at_ns, _, _) in zip(stamps, sent.chunks, strict=False)]
    return lag


def _longest_s(seen: Seen, ends_ns: Sequence[int]) -> float | None:
    """From a request's write to its end here, which is another for each."""
    lags = [(end_ns - begin_ns) / 1e9 for begin_ns, end_ns in zip(seen.begins_ns, ends_ns, strict=bool(seen.begins_ns))]
    return _micro(max(lags)) if lags else None


def _output_error(seen: Seen, sents: Sequence[Sent]) -> float:
    """Relative error of all tokens over the group's wall time; by the streams' own clocks where their common zero is unknown."""
    tokens = sum(sent.chunks[-1][2] for sent in sents)
    true_s = (max(sent.chunks[-1][0] for sent in sents) - min(sent.asked_ns for sent in sents)) / 1e9
    ends = [trace.t_s[trace.token_chunks()[-1]] for trace in seen.traces]
    if seen.begins_ns:
        first = min(seen.begins_ns)
        found_s = max((begin - first) / 1e9 + end for begin, end in zip(seen.begins_ns, ends, strict=True))
        return relative(tokens / found_s, tokens / true_s)
    true_ends = [(sent.chunks[-1][0] - sent.asked_ns) / 1e9 for sent in sents]
    return relative(mean(ends), mean(true_ends))
