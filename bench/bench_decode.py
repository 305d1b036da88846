#!/usr/bin/env python3
"""The decode measurement as one command: `python -m bench.bench_decode --phase prose`, also `python3 bench/bench_decode.py`.

Accepts the public script's flags. Ends with 0 (valid), 1 (server fault or a failed output gate), 2 (bad arguments),
3 (invalid measurement: kept under invalid/, never to be quoted).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __package__ in (None, ""):  # run as a file: make the repository importable
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    from bench.errors import BadRequest, BenchError
    from bench.phases import catalog
    from bench.phases.level import Level
    from bench.phases.names import PHASES
    from bench.provenance import without_private
    from bench.receipt import Payload, Receipt, System, seal, shown, write
    from bench.run import Options, Report, Target, find_target, measure_program
    from bench.stream import Deadlines, run
    from bench.validity import expected_requests
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing.name} is not installed for this Python\n  try: ./lab bench, or .venv/bin/python {sys.argv[0]}")

RECEIPTS = Path(__file__).resolve().parent.parent / "results" / "receipts"
_DEFAULT_URL = "http://127.0.0.1:8888"


@dataclass(frozen=True)
class Job:
    """What to measure where, and where the receipts go (`out`: a file for one receipt, or a folder).

    concurrency: one receipt per number of lanes, empty = the phase's own. depths: one receipt per prompt length, None = the phase's own.
    """

    base_url: str
    phases: tuple[str, ...]
    model: str | None = None
    api_key: str | None = None
    out: Path | None = None
    system: System = field(default_factory=System)
    options: Options = field(default_factory=Options)
    concurrency: tuple[int, ...] = ()
    depths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Written:
    """One receipt and where it was written."""

    receipt: Receipt
    path: Path


def bench(job: Job, report: Report) -> list[Written]:
    """Measure every level of every phase and write one receipt each. Ctrl-C, or a request that fails, ends the job after the receipt."""
    _refuse_unwritable(job.out or RECEIPTS)
    return run(_bench(job, report))


async def _bench(job: Job, report: Report) -> list[Written]:
    target = await find_target(job.base_url, job.api_key, job.model, job.system, job.options.deadlines)
    levels = await _levels(job, target)
    written: list[Written] = []
    for level in levels:
        try:
            program = await catalog.KINDS[level.phase].build(level)
        except asyncio.CancelledError:  # Ctrl-C while a prompt was being fitted: what is written already is still reported
            if not written:
                raise
            break
        payload = await measure_program(target, program, job.options, report)
        written.append(_store(payload, job.out))
        if any(run.trace.error for run in payload.runs) or len(payload.runs) < expected_requests(payload.protocol):
            break
    return written


async def _levels(job: Job, target: Target) -> list[Level]:
    if len(job.phases) == 1:
        catalog.refuse_useless(job.phases[0], job.concurrency, job.depths)
    made = [await catalog.levels(phase, target, job.options, job.concurrency, job.depths) for phase in job.phases]
    levels = [level for some in made for level in some]
    if job.out and job.out.suffix == ".json" and len(levels) > 1:
        raise BadRequest(f"--out {job.out} is one file, but this writes {len(levels)} receipts\ntry: --out FOLDER")
    return levels


def _store(payload: Payload, out: Path | None) -> Written:
    """Seal and write. An invalid receipt goes to `invalid/` beside the good ones, whatever it was to be called."""
    clean = payload.model_copy(update={"system": System.model_validate(without_private(payload.system.model_dump()))})
    path = out if out and out.suffix == ".json" else (out or RECEIPTS) / _file_name(payload)
    if not payload.valid:
        path = path.parent / "invalid" / path.name
    receipt = seal(clean)
    write(receipt, path)
    return Written(receipt, path)


def _file_name(payload: Payload) -> str:
    day = payload.created_utc[:10].replace("-", "")
    protocol = payload.protocol
    lanes = f"-c{protocol.concurrency}" if protocol.concurrency > 1 else ""
    depth = f"-d{protocol.depth_tokens}" if protocol.depth_tokens is not None else ""
    return f"{day}-{payload.system.kit or 'server'}-{protocol.phase}{lanes}{depth}-{payload.id}.json"


def _refuse_unwritable(out: Path) -> None:
    """Find out now, not after the measurement, that the receipts cannot be written."""
    folder = out.parent if out.suffix == ".json" else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        raise BadRequest(f"receipts cannot be written to {folder}: {error}") from error
    if not writable:
        raise BadRequest(f"receipts cannot be written to {folder}: permission denied")


def verdict(written: Sequence[Written]) -> tuple[int, list[str]]:
    """Exit code and what to say: 3 when a receipt is invalid, 1 when an output gate failed, else 0."""
    lines, code = [], 0
    for one in written:
        lines.append(f"{shown(one.path)}: {'valid' if one.receipt.valid else 'INVALID, kept apart; not to be quoted'}")
        lines += [f"  invalid: {reason}" for reason in one.receipt.invalid_because]
        lines += [f"  failed gate: {gate}" for gate in one.receipt.failed_gates]
        lines += [f"  note: {note}" for note in one.receipt.notes]
        code = max(code, 3 if not one.receipt.valid else 1 if one.receipt.failed_gates else 0)
    return code, lines


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=PHASES, default="prose")
    parser.add_argument("--structured", action="store_true", help="the same as --phase structured")
    parser.add_argument("--runs", type=_positive, default=None, help="default 3; 1 with --quick")
    parser.add_argument("--concurrency", type=_numbers, default=(), help="lanes at once, as 1,2,4: one receipt each")
    parser.add_argument("--depths", type=_numbers, default=None, help="prompt tokens, as 8192,32768: one receipt each")
    parser.add_argument("--quick", action="store_true", help="a trial: short prompts and answers")
    parser.add_argument("--max-tokens", type=_positive, default=None, help="default: the workload's own")
    parser.add_argument("--skip-coherence", action="store_true")
    parser.add_argument("--keep-prefix-cache", action="store_true", help="send the very same prompt each run")
    parser.add_argument("--base-url", default=os.environ.get("GLM53_BENCH_BASE", _DEFAULT_URL), help="or GLM53_BENCH_BASE")
    parser.add_argument("--model", default=None, help="default: the one the server lists")
    parser.add_argument("--stall-timeout", type=float, default=Deadlines.stall_s, help="seconds without data that end a run")
    parser.add_argument("--out", type=Path, default=None, help="a .json file or a folder; default results/receipts/")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _numbers(text: str) -> tuple[int, ...]:
    values = tuple(int(word) for word in text.split(","))
    if min(values) < 0:
        raise ValueError
    return values


def api_key_from_environment() -> str | None:
    """VLLM_API_KEY, else API_KEY, else None."""
    return os.environ.get("VLLM_API_KEY") or os.environ.get("API_KEY") or None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    args = _arguments(argv)
    options = Options(
        runs=args.runs or (None if args.quick else 3),
        max_tokens=args.max_tokens,
        salted=not args.keep_prefix_cache,
        coherence=not args.skip_coherence,
        deadlines=Deadlines(stall_s=args.stall_timeout),
        quick=args.quick,
    )
    phase = "structured" if args.structured else args.phase
    where = (args.model, api_key_from_environment(), args.out)
    job = Job(args.base_url, (phase,), *where, options=options, concurrency=args.concurrency, depths=args.depths)
    try:
        code, lines = verdict(bench(job, lambda text: print(text, file=sys.stderr)))
    except BenchError as error:
        code, lines = error.exit_code, [f"error: {error}"]
    except KeyboardInterrupt:
        code, lines = 3, ["interrupted before the first run: nothing was measured"]
    print("\n".join(lines), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
