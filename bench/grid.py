"""A table of finished text cells, and its three written forms: markdown, HTML, LaTeX. Pure."""

from __future__ import annotations

import html as htmllib
import re
from collections.abc import Sequence
from dataclasses import dataclass

FORMATS = ("markdown", "html", "latex")
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_NUMBER = re.compile(r"[-+]?[\d.,]+ ?%?( ?\(.*\))?|-|unknown")


@dataclass(frozen=True)
class Grid:
    """Rows of plain text under `head`, all equally long. title: what the table is; note: what a reader must know of it."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""


def render(grid: Grid, form: str) -> str:
    """The grid in one of FORMATS."""
    return {"markdown": markdown, "html": html, "latex": latex}[form](grid)


def markdown(grid: Grid) -> str:
    """A table of pipes; a pipe inside a cell is escaped."""
    lines = [grid.head, ("---",) * len(grid.head), *grid.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def html(grid: Grid) -> str:
    """A table element with scopes; cells that are figures have the class n. The text is escaped."""
    figures = [_figures(grid, at) for at in range(len(grid.head))]
    head = "".join(f'<th scope="col"{_class(n)}>{htmllib.escape(cell)}</th>' for cell, n in zip(grid.head, figures, strict=True))
    rows = ["".join(f"<td{_class(n)}>{htmllib.escape(c)}</td>" for c, n in zip(row, figures, strict=True)) for row in grid.rows]
    caption = f"<caption>{htmllib.escape(grid.title)}</caption>" if grid.title else ""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _class(figure: bool) -> str:
    return ' class="n"' if figure else ""


def _figures(grid: Grid, at: int) -> bool:
    return bool(grid.rows) and all(_NUMBER.fullmatch(row[at]) for row in grid.rows)


def latex(grid: Grid) -> str:
    """A tabular between horizontal rules of the kernel, so that no package is needed."""
    columns = "".join("r" if _figures(grid, at) else "l" for at in range(len(grid.head)))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", _latex_row(grid.head), r"\hline"]
    return "\n".join([*lines, *(_latex_row(row) for row in grid.rows), r"\hline", r"\end{tabular}"])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join("".join(_LATEX.get(letter, letter) for letter in cell) for cell in cells) + r" \\"
