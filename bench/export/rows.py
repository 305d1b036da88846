"""One CSV row per measured request, units in the headers, unknown as an empty field."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from bench.receipt import Receipt, Run

_METRICS = {
    "n_tokens": "output_tokens",
    "token_source": "token_source",
    "ttfr_s": "ttfr_s",
    "ttft_s": "ttft_s",
    "e2el_s": "e2el_s",
    "tpot_s": "tpot_s",
    "decode_tok_s": "decode_tok_per_s",
    "itl_p50_s": "itl_p50_s",
    "itl_p90_s": "itl_p90_s",
    "itl_p99_s": "itl_p99_s",
    "itl_max_s": "itl_max_s",
    "tokens_per_chunk": "tokens_per_chunk",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_prompt_tokens",
}
_PLACE = {"role": "role", "lane": "lane", "round": "round", "start_s": "start_in_round_s", "due_s": "due_in_round_s"}


def csv_text(receipts: Sequence[Receipt]) -> str:
    """The table with its header line; lines end with a line feed."""
    rows = [_row(receipt, run) for receipt in receipts for run in receipt.runs]
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def _row(receipt: Receipt, run: Run) -> dict[str, Any]:
    protocol = receipt.protocol
    metrics, place = run.metrics.model_dump(), run.place.model_dump() if run.place else {}
    return {
        "receipt": receipt.id,
        "created_utc": receipt.created_utc,
        "kit": receipt.system.kit,
        "model": receipt.model,
        "arm": receipt.arm,
        "boot": receipt.system.boot,
        "valid": receipt.valid,
        "phase": protocol.phase,
        "concurrency": protocol.concurrency,
        "depth_tokens": protocol.depth_tokens,
        "run": run.index,
        "prompt": run.prompt,
        "error": run.trace.error,
        "finish_reason": run.trace.finish_reason,
        **{title: place.get(name) for name, title in _PLACE.items()},
        **{title: metrics[name] for name, title in _METRICS.items()},
        "cache_label": run.cache.label if run.cache else None,
        "prefill_tok_per_s": run.cache.prefill_tok_s if run.cache else run.metrics.prefill_tok_s,
    }
