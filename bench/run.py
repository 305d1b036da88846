"""Measuring one phase against one server: warm-up, coherence probes, and runs, each between two counter readings."""

from __future__ import annotations

import asyncio
import datetime
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import counters, workload
from bench.counters import Counters, delta
from bench.derive import derived
from bench.errors import BadRequest, BenchError
from bench.measure import measure
from bench.proofs import PROBES, Health, Isolation, ProbeResult, judge
from bench.provenance import tool
from bench.receipt import Payload, Protocol, Run, Sent, System
from bench.stream import INTERRUPTED, Deadlines, Dialect, Endpoint, Request, served_models, stream
from bench.summarize import summarize
from bench.trace import Trace

_WARM_UP_TOKENS = 32
_SETTLE_S = 2.0
# A proxy from the environment must not stand between us and the server that is measured.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to measure. max_tokens None: the workload's own. salted: put a fresh word before each prompt (see workload.salted)."""

    runs: int = 5
    max_tokens: int | None = None
    salted: bool = True
    coherence: bool = True
    arm: str = "default"
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(frozen=True)
class Target:
    """The server under test: where it is, the model to name, and what is known of it."""

    endpoint: Endpoint
    model: str
    system: System


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


async def read_counters(endpoint: Endpoint) -> Counters | None:
    """The server's counters now, or None when it offers none in a dialect that we know."""
    return await asyncio.to_thread(_read_counters, endpoint)


def _read_counters(endpoint: Endpoint) -> Counters | None:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    request = urllib.request.Request(f"{endpoint.base_url}/metrics", headers=headers)
    try:
        with _OPENER.open(request, timeout=10) as answer:
            return counters.parse(answer.read().decode(errors="replace"))
    except (urllib.error.URLError, OSError, ValueError):
        return None


async def measure_phase(target: Target, load: workload.Workload, options: Options, report: Report) -> Payload:
    """One phase as an unsealed receipt, with everything derived. Ctrl-C ends it early; the payload is then marked invalid."""
    max_tokens = options.max_tokens or load.max_tokens
    runs: list[Run] = []
    probes: tuple[ProbeResult, ...] | None = None
    try:
        await _warm_up(target, options)
        probes = await _probe(target, options) if options.coherence else None
        for index in range(options.runs * len(load.prompts)):
            prompt = load.prompts[index % len(load.prompts)]
            runs.append(await _run(target, prompt, index, max_tokens, options))
            report(_line(load.phase, runs[-1], options.runs * len(load.prompts)))
            if runs[-1].trace.error:
                break
    except asyncio.CancelledError:
        pass  # Ctrl-C outside a run: what there is so far becomes a receipt, invalid for its missing runs
    return derived(_payload(target, load, options, runs, probes))


async def _warm_up(target: Target, options: Options) -> None:
    trace = await _unmeasured(target, workload.warm_up().text, _WARM_UP_TOKENS, options)
    if trace.error:
        raise BenchError(f"the warm-up request failed: {trace.error}\ntry: invoke status, invoke logs")


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


async def _run(target: Target, prompt: workload.Prompt, index: int, max_tokens: int, options: Options) -> Run:
    salt = secrets.token_hex(4) if options.salted else None
    request = Request(target.model, workload.salted(prompt, salt), max_tokens)
    before = await read_counters(target.endpoint)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    trace = await stream(target.endpoint, request, options.deadlines)
    metrics = measure(trace)
    return Run(
        index=index,
        prompt=prompt.id,
        salt=salt,
        started_utc=started,
        request_sha256=request.sha256(target.endpoint.dialect),
        trace=trace,
        before=before,
        after=await _settled(target.endpoint, before, metrics.n_tokens),
        metrics=metrics,
        isolation=Isolation(idle=None, own_generation=None, own_prompt=None, held=None),
        health=Health(empty=False, nan=False, broken_utf8=False, loop=False),
    )


async def _settled(endpoint: Endpoint, before: Counters | None, own_tokens: int | None) -> Counters | None:
    """The counters after a request: servers book a finished request a moment after its last byte, so wait for that."""
    deadline = asyncio.get_running_loop().time() + _SETTLE_S
    while True:
        after = await read_counters(endpoint)
        if before is None or after is None or own_tokens is None:
            return after
        booked = (delta(before, after).generation_tokens or 0) >= own_tokens and not after.running
        if booked or asyncio.get_running_loop().time() >= deadline:
            return after
        await asyncio.sleep(0.05)


def _line(phase: str, run: Run, total: int) -> str:
    metrics = run.metrics
    if run.trace.error:
        return f"{phase} run {run.index + 1}/{total}: {run.trace.error}"
    rate = "unknown" if metrics.decode_tok_s is None else f"{metrics.decode_tok_s:.1f}"
    first = "unknown" if metrics.ttft_s is None else f"{metrics.ttft_s * 1000:.0f}"
    return f"{phase} run {run.index + 1}/{total}: {metrics.n_tokens} tokens, decode {rate} tok/s, TTFT {first} ms"


def _payload(target: Target, load: workload.Workload, options: Options, runs: list[Run], probes: tuple[ProbeResult, ...] | None) -> Payload:
    protocol = Protocol(
        phase=load.phase,
        prompts=tuple(Sent(id=prompt.id, sha256=prompt.sha256) for prompt in load.prompts),
        runs=options.runs,
        max_tokens=options.max_tokens or load.max_tokens,
        temperature=0.0,
        top_p=1.0,
        thinking=False,
        salted=options.salted,
        warm_up=workload.warm_up().id,
        concurrency=1,
        dialect=target.endpoint.dialect,
    )
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
        runs=tuple(runs),
        coherence=probes,
        summary=summarize([], 0, []),
    )
