"""Tasks that drive the others: the demonstration and the test suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from cli.main import task

ROOT = Path(__file__).resolve().parent.parent
_DEMO = (
    ("serve a real 135M model on this machine", "up --kit local"),
    ("measure prose", "bench --kit local --phase prose --runs 3 --max-tokens 96"),
    ("measure structured output", "bench --kit local --phase structured --runs 3 --max-tokens 96"),
    ("check every receipt from its raw facts", "receipt.check"),
    ("make the table from the receipts", "table"),
    ("make the figures", "plot"),
)


def _invoke(words: str) -> int:
    return subprocess.run([sys.executable, "-m", "invoke", *words.split()], cwd=ROOT).returncode


@task
def demo(ctx: Any) -> int:
    """The whole job on this machine: up, bench, check, table, plot, down. Leaves a server that was already running alone."""
    was_running = subprocess.run([sys.executable, "-m", "invoke", "status", "--kit", "local", "--passive"], cwd=ROOT, capture_output=True)
    try:
        for number, (what, words) in enumerate(_DEMO, 1):
            print(f"\n[{number}/{len(_DEMO) + 1}] {what}: invoke {words}", flush=True)
            code = _invoke(words)
            if code:
                print(f"demo: step {number} ended with {code}", file=sys.stderr)
                return code
        return 0
    finally:
        if was_running.returncode:
            print(f"\n[{len(_DEMO) + 1}/{len(_DEMO) + 1}] stop the server: invoke down", flush=True)
            _invoke("down --kit local")


def _nox(*words: str) -> int:
    return subprocess.run([sys.executable, "-m", "nox", *words], cwd=ROOT).returncode


@task(help={"args": "further arguments for pytest, in quotes"})
def test(ctx: Any, args: str = "") -> int:
    """The tests a user can run: no root, no GPU (nox -s tests)."""
    return _nox("-s", "tests", *(["--", *args.split()] if args else []))


@task
def testbed(ctx: Any) -> int:
    """Two real hosts on this machine, as root: ssh, Docker, vLLM with two ranks (nox -s testbed; installs Debian packages)."""
    return _nox("-s", "testbed")


@task
def lint(ctx: Any) -> int:
    """ruff and mypy over the code (nox -s lint types)."""
    return _nox("-s", "lint", "types")
