"""`python -m bench.tables`: write the tables of README.md and docs/ anew from the committed receipts; `--check` only compares."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.accuracy import __main__ as accuracy
from bench.errors import BenchError
from bench.peers import table as peers

ROOT = Path(__file__).resolve().parent.parent
ACCURACY, PEERS = "results/accuracy/accuracy.json", "results/peers/peers.json"


@dataclass(frozen=True)
class Place:
    """A table between `<!-- mark -->` and `<!-- /mark -->` of a document, made from a receipt's text."""

    document: str
    mark: str
    receipt: str
    made: Callable[[str], str]


def _accuracy(text: str) -> str:
    return accuracy.table(accuracy.Receipt.model_validate_json(text))


def _peers(show: Callable[[peers.Receipt], str]) -> Callable[[str], str]:
    return lambda text: show(peers.Receipt.model_validate_json(text))


def _live(receipt: peers.Receipt) -> str:
    return peers.live_table(receipt) if receipt.live else "Not measured in this receipt."


PLACES = (
    Place("README.md", "accuracy", ACCURACY, _accuracy),
    Place("README.md", "peers", PEERS, _peers(peers.summary_table)),
    Place("docs/peers.md", "peers", PEERS, _peers(peers.table)),
    Place("docs/peers.md", "peers cost", PEERS, _peers(peers.cost_table)),
    Place("docs/peers.md", "peers live", PEERS, _peers(_live)),
)


def filled(text: str, mark: str, table: str) -> str:
    """`text` with `table` between the marks. Raises ValueError unless each mark stands there once."""
    begin, end = f"<!-- {mark} -->\n", f"\n<!-- /{mark} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"it has not one pair of marks <!-- {mark} --> and <!-- /{mark} -->")
    return re.sub(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", lambda _: table, text, flags=re.DOTALL)


def stale(root: Path, *, write: bool) -> list[str]:
    """The documents whose tables differ from the receipts; with `write` they no longer do. Raises BenchError."""
    found = []
    for place in PLACES:
        path = root / place.document
        text = path.read_text()
        try:
            new = filled(text, place.mark, place.made((root / place.receipt).read_text()))
        except (OSError, ValueError) as error:
            raise BenchError(f"{place.document}: no table '{place.mark}' from {place.receipt}: {error}") from error
        if new != text:
            found.append(f"{place.document}: {place.mark}")
            if write:
                path.write_text(new)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description="Write the tables of the documents from the receipts.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a table is out of date")
    check = parser.parse_args().check
    try:
        found = stale(ROOT, write=not check)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(*([f"{'out of date' if check else 'written'}: {one}" for one in found] or ["every table is up to date"]), sep="\n")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
