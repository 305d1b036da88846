"""Progress on stderr: one line per finished run, and a clock on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.lanes import Report


@contextlib.contextmanager
def reporter() -> Iterator[Report]:
    """A function that prints one line of progress; below the lines the time that has passed, where somebody watches."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("measuring"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task("", total=None)
        yield lambda line: console.print(line, markup=False)
