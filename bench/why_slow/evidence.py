"""What a receipt tells about speed, as plain values. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.compare.load import primary
from bench.counters import delta
from bench.receipt import Receipt, Run


@dataclass(frozen=True)
class Evidence:
    """Seconds, tokens, tokens per second. length: acceptance length (1 + accepted / drafts), 1 without speculation, None when unknown.

    steps_s: engine step time of each run of a single stream, length / rate. cached_share: of the prompts after the first run.
    isolated: False when a run was not alone on the server.
    """

    id: str
    kit: str | None
    phase: str
    concurrency: int
    figure: str
    rate: float
    rates: tuple[float, ...]
    length: float | None
    acceptance_rate: float | None
    drafts: int
    per_position: tuple[float, ...]
    steps_s: tuple[float, ...]
    ttft_s: float | None
    ttft_max_s: float | None
    prompt_tokens: int | None
    cached_share: float | None
    salted: bool
    isolated: bool | None
    dialect: str
    spec_method: str | None
    drafter: str | None
    drafter_revision: str | None

    @property
    def step_s(self) -> float | None:
        return statistics.median(self.steps_s) if self.steps_s else None


def of(receipt: Receipt) -> Evidence | None:
    """The evidence of a receipt, valid or not; None when it holds no rate."""
    main = primary(receipt)
    if main is None:
        return None
    good = [run for run in receipt.runs if not run.trace.error]
    accepted, settings = receipt.summary.acceptance, receipt.system.settings or {}
    method = settings.get("spec_method")
    kept = [run.isolation.held for run in good if run.isolation.held is not None]
    return Evidence(
        id=receipt.id,
        kit=receipt.system.kit,
        phase=receipt.protocol.phase,
        concurrency=receipt.protocol.concurrency,
        figure=main.name,
        rate=main.value,
        rates=main.runs,
        length=accepted.acceptance_length if accepted else 1.0 if method == "none" else None,
        acceptance_rate=accepted.acceptance_rate if accepted else None,
        drafts=accepted.drafts if accepted else 0,
        per_position=accepted.per_position if accepted else (),
        steps_s=_steps(good, method == "none") if receipt.protocol.concurrency == 1 else (),
        ttft_s=receipt.summary.ttft_s.median if receipt.summary.ttft_s else None,
        ttft_max_s=receipt.summary.ttft_s.max if receipt.summary.ttft_s else None,
        prompt_tokens=good[0].metrics.prompt_tokens if good else None,
        cached_share=_cached(good[1:]),
        salted=receipt.protocol.salted,
        isolated=all(kept) if kept else None,
        dialect=receipt.protocol.dialect,
        spec_method=str(method) if method is not None else None,
        drafter=str(settings["dflash_model"]) if method == "dflash" and settings.get("dflash_model") else None,
        drafter_revision=str(settings["dflash_revision"]) if method == "dflash" and settings.get("dflash_revision") else None,
    )


def _steps(runs: list[Run], plain: bool) -> tuple[float, ...]:
    found = []
    for run in runs:
        moved, rate = delta(run.before, run.after), run.metrics.decode_tok_s
        if rate and moved.drafts and moved.accepted_tokens is not None:
            found.append((1 + moved.accepted_tokens / moved.drafts) / rate)
        elif rate and plain:
            found.append(1 / rate)
    return tuple(found)


def _cached(runs: list[Run]) -> float | None:
    known = [
        (r.metrics.cached_tokens, r.metrics.prompt_tokens) for r in runs if r.metrics.cached_tokens is not None and r.metrics.prompt_tokens
    ]
    return sum(cached for cached, _ in known) / sum(prompt or 0 for _, prompt in known) if known else None
