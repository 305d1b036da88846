"""Measuring one phase against one server: warm-up, coherence probes, then the phase's own requests."""

from __future__ import annotations

import asyncio
import datetime
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench import workload
from bench.derive import derived
from bench.errors import BadRequest, BenchError
from bench.goodput import Slo
from bench.lanes import Broken, Report, Session
from bench.proofs import PROBES, ProbeResult, judge
from bench.provenance import tool
from bench.receipt import Payload, Protocol, System
from bench.server import read_counters
from bench.stream import INTERRUPTED, Deadlines, Dialect, Endpoint, Request, served_models, stream
from bench.summarize import summarize
from bench.trace import Trace, Usage

__all__ = ["Load", "Options", "Program", "Report", "Target", "find_target", "measure_program", "normal_url", "read_counters"]

_WARM_UP_TOKENS = 32
QUICK_TOKENS = 64


@dataclass(frozen=True)
class Load:
    """What the load of the phases beyond plain decode is like. rate_req_s, requests, slo, seed: open loop; turns: agents."""

    rate_req_s: float = 0.5
    requests: int = 20
    slo: Slo = field(default_factory=lambda: Slo(ttft_s=2.0, tpot_s=0.1))
    seed: int = 1
    turns: int = 4


@dataclass(frozen=True)
class Options:
    """How to measure. runs, max_tokens None: the phase's own. salted: put a fresh word before each prompt (see workload.salted).

    quick: one run, short answers and prompts: a trial of the whole way, not a figure to quote.
    """

    runs: int | None = None
    max_tokens: int | None = None
    salted: bool = True
    coherence: bool = True
    arm: str = "default"
    deadlines: Deadlines = field(default_factory=Deadlines)
    quick: bool = False
    load: Load = field(default_factory=Load)

    def runs_or(self, usual: int) -> int:
        return self.runs or (1 if self.quick else usual)

    def tokens_or(self, usual: int) -> int:
        return self.max_tokens or (min(usual, QUICK_TOKENS) if self.quick else usual)


@dataclass(frozen=True)
class Target:
    """The server under test: where it is, the model to name, and what is known of it."""

    endpoint: Endpoint
    model: str
    system: System


@dataclass(frozen=True)
class Program:
    """A phase ready to run: its protocol, and what it sends."""

    protocol: Protocol
    play: Callable[[Session], Awaitable[None]]


def normal_url(text: str) -> str:
    """`text` without a trailing slash or /v1. Raises BadRequest unless it is an http(s) URL with a host."""
    url = text.rstrip("/").removesuffix("/v1").rstrip("/")
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise BadRequest(f"'{text}' is no URL of a server\ntry: --base-url http://HOST:PORT")
    return url


async def find_target(base_url: str, api_key: str | None, model: str | None, system: System, deadlines: Deadlines) -> Target:
    """Ask the server what it serves and which dialect it speaks. Raises BadRequest when `model` is not served."""
    endpoint = Endpoint(normal_url(base_url), api_key)
    models, owner = await served_models(endpoint, deadlines)
    if model is None and len(models) > 1:
        raise BadRequest(f"the server has several models: {', '.join(models)}\ntry: --model NAME")
    if model is not None and model not in models:
        raise BadRequest(f"model '{model}' is not served here; served: {', '.join(models)}\ntry: --model {models[0]}")
    reading = await read_counters(endpoint)
    spoken: Dialect = reading.dialect if reading else "vllm" if owner == "vllm" else "llamacpp" if owner == "llamacpp" else "openai"
    return Target(Endpoint(endpoint.base_url, api_key, spoken), model or models[0], system)


async def measure_program(target: Target, program: Program, options: Options, report: Report) -> Payload:
    """One program as an unsealed receipt, with everything derived. Ctrl-C ends it early; the payload is then marked invalid."""
    session = Session(target.endpoint, target.model, options.deadlines, report, program.protocol.natural_end is False)
    probes: tuple[ProbeResult, ...] | None = None
    usage: Usage | None = None
    try:
        usage = await _warm_up(target, options)
        probes = await _probe(target, options) if options.coherence else None
        await program.play(session)
    except (Broken, asyncio.CancelledError):
        pass  # a failed request, or Ctrl-C outside one: what there is so far becomes a receipt, invalid for what is missing
    return derived(_payload(target, program.protocol, options, session, (probes, usage)))


async def _warm_up(target: Target, options: Options) -> Usage | None:
    trace = await _unmeasured(target, workload.warm_up().text, _WARM_UP_TOKENS, options)
    if trace.error:
        raise BenchError(f"the warm-up request failed: {trace.error}\ntry: invoke status, invoke logs")
    return trace.usage


async def _unmeasured(target: Target, text: str, max_tokens: int, options: Options) -> Trace:
    """A request beside the runs. Ctrl-C during it ends the whole phase."""
    trace = await stream(target.endpoint, Request(target.model, text, max_tokens), options.deadlines)
    if trace.error == INTERRUPTED:
        raise asyncio.CancelledError
    return trace


async def _probe(target: Target, options: Options) -> tuple[ProbeResult, ...]:
    found = []
    for probe in PROBES:
        trace = await _unmeasured(target, probe.question, probe.max_tokens, options)
        found.append(judge(probe.id, trace.text, trace.error))
    return tuple(found)


def _payload(
    target: Target, protocol: Protocol, options: Options, session: Session, before: tuple[tuple[ProbeResult, ...] | None, Usage | None]
) -> Payload:
    return Payload(
        id=secrets.token_hex(6),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        arm=options.arm,
        model=target.model,
        valid=False,
        invalid_because=(),
        failed_gates=(),
        notes=(),
        tool=tool(),
        system=target.system,
        protocol=protocol,
        runs=tuple(session.runs),
        coherence=before[0],
        summary=summarize([], 0, []),
        rounds=tuple(session.rounds),
        warm_up=before[1],
    )
