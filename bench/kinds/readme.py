"""The tables in README.md and docs/, made from committed receipts: `python -m bench.kinds.readme` writes them anew.

A line `<!-- table: FILES -->` or `<!-- table KIND: FILES -->` stands before each; FILES are names under results/receipts/, or paths
under results/ with a slash, patterns included. The table after it, up to the first line that is none, is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench import grid
from bench.errors import InvalidMeasurement
from bench.kinds import registry, show

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
_TABLE = re.compile(r"^(<!-- table(?: (?P<kind>[a-z]+))?: (?P<files>.+) -->\n)(?:\|.*\n)*", re.MULTILINE)


def documents(root: Path = ROOT) -> list[Path]:
    """The documents that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def renewed(text: str, results: Path = RESULTS) -> str:
    """The text with every marked table made anew. Raises InvalidMeasurement for a receipt that is missing, unsound or invalid."""
    return _TABLE.sub(lambda found: found[1] + _table(found["kind"] or "performance", found["files"].split(), results) + "\n", text)


def _table(word: str, names: list[str], results: Path) -> str:
    kind = next((each for each in registry.KINDS if each.word == word), None)
    if kind is None:
        raise InvalidMeasurement(f"table {word}: there is no such kind of receipt; there are {', '.join(registry.WORDS)}")
    pile = registry.load([path for name in names for path in _files(name, results)], [word])
    if pile.left_out:
        raise InvalidMeasurement(f"table {word}: {pile.left_out[0]}")
    return grid.markdown(show.grid_of(pile, kind))


def _files(name: str, results: Path) -> list[Path]:
    found = sorted(results.glob(name if "/" in name else f"receipts/{name}"))
    if not found:
        raise InvalidMeasurement(f"no receipt {name} under results/")
    return found


def main() -> None:
    for path in documents():
        text = path.read_text(encoding="utf-8")
        path.write_text(renewed(text), encoding="utf-8")


if __name__ == "__main__":
    main()
