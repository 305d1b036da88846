"""Writing the page."""

from __future__ import annotations

import os
from pathlib import Path

from bench.kinds.registry import Pile, documents, load
from bench.report import html
from bench.report.sections import SECTIONS, overview

TITLE = "Spark Lab: report"


def pile_of(results: Path) -> Pile:
    """Every receipt under `results`."""
    return load(documents(results))


def text(pile: Pile, folder: Path) -> str:
    """The page, as it will lie in `folder` (its links to the receipts are relative). The same receipts give the same text."""
    sections = [(each.anchor, each.heading, each.body(pile, folder)) for each in SECTIONS]
    return html.page(TITLE, html.table(overview(pile), "Overview"), sections)


def write(pile: Pile, folder: Path) -> Path:
    """Write index.html atomically into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text(pile, folder), encoding="utf-8")
    os.replace(temporary, path)
    return path
