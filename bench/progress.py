"""Progress on stderr: a bar on a terminal, one line per run elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.run import Report


@contextlib.contextmanager
def reporter(total: int) -> Iterator[Report]:
    """A function that prints one finished run and moves the bar on by one of `total`."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def report(line: str) -> None:
            console.print(line, markup=False)
            bar.advance(task)

        yield report
