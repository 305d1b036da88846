"""One call of the benchmark against a Tiny server."""

import itertools
from pathlib import Path

from bench.bench_decode import main
from bench.check import check
from bench.receipt import Receipt
from tests.bench.tiny_server import Tiny


def bench(tiny: Tiny, out: Path, *args: str) -> tuple[int, list[Receipt]]:
    """Exit code and the receipts, each of which recomputes from its raw facts; in the order they were written. One run by default."""
    runs = [] if "--quick" in args else ["--runs", "1"]
    code = main(["--base-url", tiny.base_url, "--out", str(out), "--skip-coherence", *runs, *args])
    files = sorted(itertools.chain(out.glob("*.json"), out.glob("invalid/*.json")), key=lambda file: file.stat().st_mtime_ns)
    return code, [check(file) for file in files]
