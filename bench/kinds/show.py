"""The tables of a pile of receipts as one text. Pure."""

from __future__ import annotations

from bench import grid
from bench.grid import Grid
from bench.kinds.registry import KINDS, Kind, Pile, by_word, call

NONE_YET = "No valid receipt yet; `invoke bench` writes one."


def grid_of(pile: Pile, kind: Kind) -> Grid:
    """The kind's table of the pile's documents."""
    found: Grid = call(kind.table)([each.document for each in pile.of(kind.word)])
    return found


def tables(pile: Pile, word: str | None, form: str) -> str:
    """The table of the kind `word`; without one, performance first, and then what else the pile holds, each under its title."""
    first = by_word(word or "performance")
    if not pile.of(first.word) and (word or not pile.found):
        return NONE_YET if first.word == "performance" else f"No valid receipt of kind {first.word} yet."
    parts = [grid.render(grid_of(pile, first), form)] if pile.of(first.word) else []
    for kind in KINDS if word is None else ():
        if kind is not first and pile.of(kind.word):
            found = grid_of(pile, kind)
            parts.append(f"{kind.title}. {found.note}".strip() + "\n\n" + grid.render(found, form))
    return "\n\n".join(parts)
