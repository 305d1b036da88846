"""The report's task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


@cli.task(help={"results": "folder with the receipts (default results/)", "out": "folder of the page (default results/report/)"})
def report(ctx: Any, results: str | None = None, out: str | None = None) -> int:
    """All tables and figures of the receipts as one self-contained page, index.html. Exit 3 when a receipt had to be left out."""
    from bench.receipt import shown
    from bench.report import build

    folder = Path(results) if results else RESULTS
    if not folder.is_dir():
        raise BadRequest(f"no folder {shown(folder)}")
    pile = build.pile_of(folder)
    for line in pile.left_out:
        print(f"left out: {line}", file=sys.stderr)
    path = build.write(pile, Path(out) if out else RESULTS / "report")
    print(f"{shown(path)}: {len(pile.found)} receipts, {len(pile.left_out)} left out, {path.stat().st_size / 2**20:.1f} MiB")
    return 3 if pile.left_out else 0
