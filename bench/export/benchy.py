"""Rows as llama-benchy names them: `pp` = prompt processing, `tg` = token generation, `@ dN` = after N tokens of context.

The figures are this project's: a prompt's rate counts the tokens that were not cached, decode rates never count chunks, nothing is
subtracted for latency. For several lanes `t/s (total)` spans first to last token of the group, which is how that tool defines it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.derive import lane
from bench.groups import Lane
from bench.measure import ratio
from bench.receipt import Receipt, Run

_HEAD = ("model", "test", "t/s (total)", "t/s (req)", "peak t/s", "peak t/s (req)", "ttfr (ms)", "est_ppt (ms)", "e2e_ttft (ms)")


@dataclass(frozen=True)
class _Batch:
    """The good runs of one receipt that were asked for the same."""

    receipt: Receipt
    runs: tuple[Run, ...]

    @property
    def lanes(self) -> int:
        return self.receipt.protocol.concurrency

    @property
    def prompt(self) -> int | None:
        """Prompt tokens that had to be processed: the median over the runs."""
        cold = [_uncached(run) for run in self.runs]
        return None if not cold or None in cold else round(statistics.median(n or 0 for n in cold))

    @property
    def cached(self) -> int:
        """Prompt tokens that were there already; 0 for a prompt that the data call cold, whatever its chat template shared."""
        if any(run.cache is None or run.cache.label in (None, "cold") for run in self.runs):
            return 0
        return round(statistics.median(run.metrics.cached_tokens or 0 for run in self.runs))


def _uncached(run: Run) -> int | None:
    """Prompt tokens less those from the cache; a cold prompt counts whole, and so does one whose cached tokens are not known."""
    whole = run.metrics.prompt_tokens
    cached = run.cache.cached_tokens if run.cache and run.cache.label not in (None, "cold") else 0
    return None if whole is None else whole - (cached or 0)


def _batches(receipt: Receipt) -> list[_Batch]:
    good = [run for run in receipt.runs if not run.trace.error]
    roles = list(dict.fromkeys(run.place.role if run.place else "" for run in good))
    return [_Batch(receipt, tuple(run for run in good if (run.place.role if run.place else "") == role)) for role in roles]


def _metric(values: Sequence[float | None], scale: float = 1) -> dict[str, Any] | None:
    """mean, population standard deviation and the values, or None when none is known."""
    known = [value * scale for value in values if value is not None]
    return {"mean": statistics.fmean(known), "std": statistics.pstdev(known), "values": known} if known else None


def _prefill(run: Run) -> float | None:
    return run.cache.prefill_tok_s if run.cache else run.metrics.prefill_tok_s


def _totals(batch: _Batch) -> tuple[list[float | None], list[float | None]]:
    """Per round: uncached prompt tokens / (last first token - first start), and tokens after each lane's first / (last - first token)."""
    prompts: list[float | None] = []
    answers: list[float | None] = []
    for index in sorted({run.place.round for run in batch.runs if run.place and run.place.round is not None}):
        runs = [run for run in batch.runs if run.place and run.place.round == index]
        lanes = [lane(run) for run in runs]
        firsts, lasts = [one.first_s for one in lanes], [one.last_s for one in lanes]
        if None in firsts or None in lasts:
            continue
        begin, end = min(t for t in firsts if t is not None), max(t for t in lasts if t is not None)
        answers.append(ratio(_after_first(lanes), end - begin))
        own = [_uncached(run) for run in runs]
        span = max(t for t in firsts if t is not None) - min(one.start_s for one in lanes)
        prompts.append(None if None in own else ratio(sum(n or 0 for n in own), span))
    return prompts, answers


def _after_first(lanes: Sequence[Lane]) -> int | None:
    """Tokens of all lanes but those of each one's first chunk."""
    arrivals = [one.arrivals() for one in lanes]
    return None if None in arrivals else sum(tokens for each in arrivals for _, tokens in (each or [])[1:])


def _benchmark(batch: _Batch) -> dict[str, Any]:
    runs = [run.metrics for run in batch.runs]
    pp_req, tg_req = _metric([_prefill(run) for run in batch.runs]), _metric([m.decode_tok_s for m in runs])
    totals = _totals(batch) if batch.lanes > 1 else None
    response = sorted({m.n_tokens for m in runs if m.n_tokens is not None})
    return {
        "concurrency": batch.lanes,
        "context_size": batch.cached,
        "prompt_size": batch.prompt,
        "response_size": response[0] if len(response) == 1 else None,
        "is_context_prefill_phase": False,
        "pp_throughput": _metric(totals[0]) if totals else pp_req,
        "pp_req_throughput": pp_req,
        "tg_throughput": _metric(totals[1]) if totals else tg_req,
        "tg_req_throughput": tg_req,
        "peak_throughput": None,
        "peak_req_throughput": None,
        "ttfr": _metric([m.ttfr_s for m in runs], 1000),
        "est_ppt": _metric([m.ttfr_s for m in runs], 1000),
        "e2e_ttft": _metric([m.ttft_s for m in runs], 1000),
        "throughput_over_time": None,
        "requests_throughput_over_time": None,
    }


def report(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The JSON report's keys. prefix_caching_enabled: null, for no receipt can know it of the server."""
    batches = [batch for receipt in receipts for batch in _batches(receipt)]
    return {
        "version": f"spark-lab {receipts[0].tool.version}" if receipts else None,
        "timestamp": receipts[0].created_utc if receipts else None,
        "latency_mode": "none",
        "latency_ms": None,
        "model": receipts[0].model if receipts else None,
        "prefix_caching_enabled": None,
        "max_concurrency": max((batch.lanes for batch in batches), default=None),
        "benchmarks": [_benchmark(batch) for batch in batches],
    }


def markdown(receipts: Sequence[Receipt]) -> str:
    """The table: a pp row where the prompt's rate is known, and a tg row where the answer's is."""
    lines = [_HEAD, (":---", *["---:"] * (len(_HEAD) - 1))]
    lanes = max((receipt.protocol.concurrency for receipt in receipts), default=1)
    for receipt in receipts:
        for batch in _batches(receipt):
            lines += _rows(batch, f" (c{batch.lanes})" if lanes > 1 else "")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(batch: _Batch, suffix: str) -> list[tuple[str, ...]]:
    found, model = _benchmark(batch), batch.receipt.model.replace("|", "\\|")
    firsts = [_cell(found[name]) for name in ("ttfr", "est_ppt", "e2e_ttft")]
    rows = []
    if found["pp_throughput"] and batch.prompt is not None:
        rates = [_cell(found["pp_throughput"]), _cell(found["pp_req_throughput"])]
        rows.append((model, f"pp{batch.prompt}{_depth(batch.cached)}{suffix}", *rates, "", "", *firsts))
    if found["tg_throughput"] and found["response_size"]:
        rates = [_cell(found["tg_throughput"]), _cell(found["tg_req_throughput"])]
        depth = _depth((batch.prompt or 0) + batch.cached if batch.receipt.protocol.depth_tokens else 0)
        rows.append((model, f"tg{found['response_size']}{depth}{suffix}", *rates, "", "", "", "", ""))
    return rows


def _depth(tokens: int) -> str:
    return f" @ d{tokens}" if tokens else ""


def _cell(metric: dict[str, Any] | None) -> str:
    return "" if metric is None else f"{metric['mean']:.2f} ± {metric['std']:.2f}"
