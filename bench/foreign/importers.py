"""Readers of other tools' result files. Each takes the parsed JSON and gives rows; what is missing there is None here.

The key names are those of the tools' files: the public recipe's bench_decode script, llama-benchy, `vllm bench serve`.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import InvalidMeasurement
from bench.foreign.model import Foreign, Row
from bench.receipt import shown


@dataclass(frozen=True)
class Read:
    """What a reader found."""

    rows: tuple[Row, ...]
    created: str | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Importer:
    """A tool. marks: keys that its file has. protocol: how its figures are defined, for a reader who compares."""

    tool: str
    marks: frozenset[str]
    protocol: str
    read: Callable[[dict[str, Any]], Read]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _scaled(value: Any, scale: float) -> float | None:
    number = _number(value)
    return None if number is None else number * scale


def _bench_decode(plain: dict[str, Any]) -> Read:
    runs = [run for run in plain["runs"] if isinstance(run, dict)]
    rates = [rate for run in runs if (rate := _number(run.get("tok_s"))) is not None]
    per_step = _number(plain.get("accepted_per_step_median"))
    row = Row(
        test=str(plain.get("phase") or "prose"),
        lanes=1,
        runs=len(runs),
        decode_tok_s=statistics.median(rates) if rates else _number(plain.get("tok_s_median")),
        decode_min_tok_s=min(rates, default=None),
        decode_max_tok_s=max(rates, default=None),
        ttft_s=_number(plain.get("ttft_median_s")),
        acceptance_rate=_number(plain.get("accept_ratio_median")),
        acceptance_length=None if per_step is None else 1 + per_step,
    )
    stamp = plain.get("ts")
    return Read((row,), None if stamp is None else str(stamp), None, tuple(_decode_notes(plain, runs, rates)))


def _decode_notes(plain: dict[str, Any], runs: Sequence[dict[str, Any]], rates: Sequence[float]) -> list[str]:
    """What that script records but does not act on."""
    stated = _number(plain.get("tok_s_median"))
    notes = []
    if stated is not None and rates and abs(stated - statistics.median(rates)) > 0.01 * stated:
        notes.append(f"states a median of {stated:g} tok/s; its runs have {statistics.median(rates):g}")
    if plain.get("any_nan"):
        notes.append("any_nan is set (a mere substring of the answer can set it)")
    if plain.get("coherent") is False:
        notes.append("its coherence probes failed")
    other = sorted({str(run.get("finish_reason")) for run in runs} - {"length"})
    if other:
        notes.append(f"answers that ended otherwise than by the token limit: {', '.join(other)}")
    return notes


def _benchy(plain: dict[str, Any]) -> Read:
    rows = tuple(_benchy_row(row) for row in plain["benchmarks"])
    cached = plain.get("prefix_caching_enabled")
    return Read(rows, plain.get("timestamp"), plain.get("model"), ("prefix caching was on",) if cached else ())


def _mean(row: dict[str, Any], name: str) -> float | None:
    metric = row.get(name)
    return _number(metric.get("mean")) if isinstance(metric, dict) else None


def _benchy_row(row: dict[str, Any]) -> Row:
    rates = ((row.get("tg_req_throughput") or {}).get("values")) or []
    depth = _whole(row.get("context_size")) or 0
    lanes = _whole(row.get("concurrency"))
    return Row(
        test=f"pp{row.get('prompt_size')} tg{row.get('response_size')}",
        lanes=lanes,
        depth_tokens=depth or None,
        runs=len(rates) or None,
        decode_tok_s=_mean(row, "tg_req_throughput"),
        decode_min_tok_s=min(rates, default=None),
        decode_max_tok_s=max(rates, default=None),
        total_tok_s=_mean(row, "tg_throughput") if lanes and lanes > 1 else None,
        prefill_tok_s=_mean(row, "pp_throughput"),
        ttft_s=_scaled(_mean(row, "e2e_ttft"), 0.001),
    )


def _vllm(plain: dict[str, Any]) -> Read:
    tpot = _number(plain.get("median_tpot_ms"))
    rate, lanes = plain.get("request_rate"), _whole(plain.get("max_concurrency"))
    row = Row(
        test=f"{plain.get('num_prompts')} prompts, rate {rate}",
        lanes=lanes,
        runs=_whole(plain.get("completed")),
        decode_tok_s=1000 / tpot if tpot else None,
        total_tok_s=_number(plain.get("output_throughput")),
        ttft_s=_scaled(plain.get("median_ttft_ms"), 0.001),
        acceptance_rate=_scaled(plain.get("spec_decode_acceptance_rate"), 0.01),
        acceptance_length=_number(plain.get("spec_decode_acceptance_length")),
    )
    failed = _whole(plain.get("failed"))
    date = re.sub(r"^(\d{4})(\d\d)(\d\d)-", r"\1-\2-\3 ", str(plain["date"])) if plain.get("date") else None
    return Read((row,), date, plain.get("model_id"), (f"{failed} requests failed",) if failed else ())


IMPORTERS = (
    Importer(
        "bench_decode",
        frozenset({"phase", "runs", "tok_s_median"}),
        "one stream, (tokens - 1) / (end of stream - first delta), tokens from the final usage, no salt; median over runs",
        _bench_decode,
    ),
    Importer(
        "llama-benchy",
        frozenset({"benchmarks", "latency_mode"}),
        "means over runs; decode leaves out the first chunk's tokens; releases before 0.4 count chunks as tokens",
        _benchy,
    ),
    Importer(
        "vllm bench serve",
        frozenset({"median_tpot_ms", "output_throughput", "num_prompts"}),
        "decode = 1 / median TPOT; TTFT is the first chunk of any kind, a role-only one too; total = output tokens / wall time",
        _vllm,
    ),
)


def imported(path: Path) -> Foreign:
    """The result file at `path` as a foreign document. Raises InvalidMeasurement for a file that no importer knows or that is malformed."""
    try:
        raw = path.read_bytes()
        plain = json.loads(raw)
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    known = [each for each in IMPORTERS if isinstance(plain, dict) and each.marks <= plain.keys()]
    if not known:
        tools = ", ".join(each.tool for each in IMPORTERS)
        raise InvalidMeasurement(f"{shown(path)}: is no result file of {tools}")
    importer = known[0]
    try:
        found = importer.read(plain)
        return Foreign(
            tool=importer.tool,
            protocol=importer.protocol,
            source_file=path.name,
            source_sha256=hashlib.sha256(raw).hexdigest(),
            created=found.created,
            model=found.model,
            rows=found.rows,
            notes=found.notes,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: a result file of {importer.tool}, but malformed: {error}") from error
