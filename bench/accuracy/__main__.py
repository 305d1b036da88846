"""`python -m bench.accuracy --out FILE`: the accuracy receipt (see bench.accuracy). Ends with 1 where a goal is missed."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.accuracy.measured import Client, Error, Level, Row, row
from bench.errors import BenchError
from bench.trace import Fact

LEVELS = (Level(1, 500), Level(8, 4000), Level(32, 16000), Level(64, 20000))
# streams -> most TTFT error in seconds, most relative error of rates
GOALS = {1: (0.001, 0.001), 8: (0.003, 0.001), 32: (0.005, 0.005), 64: (0.005, 0.005)}


class Receipt(Fact):
    """Rows in the order they were measured; `missed` names every goal that a row of the lean client missed."""

    kind: str = "spark-lab accuracy 1"
    created_utc: str
    command: str
    python: str
    cores: int
    load_before: float
    rows: tuple[Row, ...]
    missed: tuple[str, ...]


def missed(found: Row) -> list[str]:
    """The goals that this row misses, in words."""
    ttft_s, rel = GOALS[found.streams]
    error = found.error
    wrong = [
        (error.ttft_max_s > ttft_s, f"TTFT error {error.ttft_max_s * 1000:.2f} ms, goal {ttft_s * 1000:g}"),
        (error.decode_max_rel > rel, f"decode error {error.decode_max_rel:.3%}, goal {rel:.1%}"),
        (error.tpot_max_rel > rel, f"TPOT error {error.tpot_max_rel:.3%}, goal {rel:.1%}"),
        (error.output_rel > rel, f"output throughput error {error.output_rel:.3%}, goal {rel:.1%}"),
        (error.tokens_lost != 0, f"{error.tokens_lost} tokens lost"),
        (found.hygiene.behind, f"the client fell behind: {found.hygiene.reason}"),
    ]
    return [f"{found.client} at {found.streams} streams: {words}" for bad, words in wrong if bad]


def plan(repeats: int, levels: Sequence[Level] = LEVELS) -> list[tuple[Client, Level]]:
    """The lean client first, before the official one's code is loaded; the official client for a second of each level."""
    ours: list[tuple[Client, Level]] = [("lean", level) for _ in range(repeats) for level in levels]
    plain: list[tuple[Client, Level]] = [("lean-asyncio", level) for level in levels]
    return ours + plain + [("openai", Level(level.streams, level.tok_s, min(1.0, level.seconds))) for level in levels]


def measure_all(todo: Sequence[tuple[Client, Level]], command: str, say: Callable[[str], None]) -> Receipt:
    load = os.getloadavg()[0]
    rows = []
    for client, level in todo:
        rows.append(row(client, level))
        say(line(rows[-1]))
    return Receipt(
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        python=platform.python_version(),
        cores=os.cpu_count() or 0,
        load_before=round(load, 2),
        rows=tuple(rows),
        missed=tuple(words for found in rows if found.client == "lean" for words in missed(found)),
    )


def verdict(receipt: Receipt) -> str:
    """The goals and which of them were missed: a paragraph of markdown."""
    limits = "; ".join(f"at {streams} TTFT {ttft_s * 1000:g} ms, rates {rel:.1%}" for streams, (ttft_s, rel) in GOALS.items())
    runs = sum(found.client == "lean" for found in receipt.rows)
    goals = f"Goals of the lean client, by streams: {limits}."
    if not receipt.missed:
        return f"{goals} All are met in {runs} of {runs} runs."
    bad = sum(bool(missed(found)) for found in receipt.rows if found.client == "lean")
    return f"{goals} Missed in {bad} of {runs} runs: {'; '.join(receipt.missed)}." + _late_requests(receipt)


def _late_requests(receipt: Receipt) -> str:
    """How much of the missed TTFTs passed before the server had read the request; "" where none was missed, where it is not known, and
    where the truth holds it too (see bench.accuracy.measured.Error)."""
    late = [
        f"{found.error.request_lag_max_s * 1000:.2f} ms"
        for found in receipt.rows
        if found.client == "lean" and found.error.ttft_max_s > GOALS[found.streams][0]
        if found.error.request_lag_max_s is not None and found.error.came_lag_max_s is None
    ]
    return f" In these runs the server had read a request only after {', '.join(late)}, which counts against the client." if late else ""


def line(found: Row) -> str:
    error: Error = found.error
    parse = "" if found.parse_cpu_s_per_1000 is None else f" ({found.parse_cpu_s_per_1000:.4f} of it parsing)"
    lag = "" if error.read_lag_p99_s is None else f", read lag p99 {error.read_lag_p99_s * 1000:.2f} ms"
    return (
        f"{found.client:12} {found.streams:2} streams {found.reached_tok_s:8.0f} tok/s: TTFT error max {error.ttft_max_s * 1000:.2f} ms, "
        f"ITL p99 error {error.itl_p99_s * 1000:.2f} ms, decode {error.decode_max_rel:.3%}, output {error.output_rel:.3%}, "
        f"CPU {found.cpu_s_per_1000:.4f} s per 1,000 tokens{parse}{lag}, server late p99 {(found.server_late_p99_s or 0) * 1000:.2f} ms"
    )


def table(receipt: Receipt) -> str:
    """A markdown table, one line per client and level, the worst of its repeats."""
    head = "| client | streams | tok/s | TTFT error, ms | ITL p50 / p99 error, ms | decode error | output error | CPU s per 1,000 tokens |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for key in dict.fromkeys((found.client, found.streams) for found in receipt.rows):
        same = [found for found in receipt.rows if (found.client, found.streams) == key]
        errors = [found.error for found in same]
        lines.append(
            f"| {key[0]} | {key[1]} | {min(found.reached_tok_s for found in same):.0f} | {max(e.ttft_max_s for e in errors) * 1000:.2f} | "
            f"{max(e.itl_p50_s for e in errors) * 1000:.2f} / {max(e.itl_p99_s for e in errors) * 1000:.2f} | "
            f"{max(e.decode_max_rel for e in errors):.3%} | {max(e.output_rel for e in errors):.3%} | "
            f"{max(found.cpu_s_per_1000 for found in same):.4f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description="Measure the benchmark's own client.")
    parser.add_argument("--out", type=Path, help="where the receipt goes (default: nowhere)")
    parser.add_argument("--repeats", type=int, default=3, help="times that each level is measured with the lean client")
    options = parser.parse_args()
    try:
        receipt = measure_all(plan(options.repeats), f"python -m bench.accuracy --repeats {options.repeats}", print)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(receipt.model_dump_json(indent=1) + "\n")
    print("", table(receipt), "", verdict(receipt), sep="\n")
    return 1 if receipt.missed else 0


if __name__ == "__main__":
    sys.exit(main())
