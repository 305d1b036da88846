"""The generated parts of README.md and docs/: what stands between two markers is written by a function of the program, and tables under
`<!-- table: ... -->` come from the receipts that the marker names (bench/kinds/readme.py), so that neither can go stale.

python -m cli.documents           # write them all
python -m cli.documents --check   # exit 1 and name those that are not what would be written
"""

from __future__ import annotations

import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = "python -m cli.documents"


@dataclass(frozen=True)
class Part:
    """What stands in `file` between `<!-- marker -->` and `<!-- /marker -->`; writer: "module:function", which gives its text."""

    file: str
    marker: str
    writer: str

    def replaced(self, text: str) -> str:
        """The document with this part as it should be. Raises ValueError without both markers, each once and in order."""
        first, last = f"<!-- {self.marker} -->\n", f"<!-- /{self.marker} -->"
        if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
            raise ValueError(f"{self.file}: needs the line {first.strip()} and after it {last}, each once")
        made: str = pkgutil.resolve_name(self.writer)()
        return text[: text.index(first)] + first + made + text[text.index(last) :]


TABLES = "bench.kinds.readme:renewed"
PARTS: tuple[Part, ...] = (
    Part("README.md", "accuracy", "bench.tables:accuracy"),
    Part("README.md", "peers", "bench.tables:peers_summary"),
    Part("README.md", "peers live", "bench.tables:peers_live_summary"),
    Part("docs/peers.md", "peers", "bench.tables:peers"),
    Part("docs/peers.md", "peers cost", "bench.tables:peers_cost"),
    Part("docs/peers.md", "peers live", "bench.tables:peers_live"),
    Part("docs/refused-settings.md", "constraints", "cluster.constraints:documented"),
    Part("docs/field-reports.md", "findings", "cluster.doctor.examine:documented"),
    Part("docs/serving.md", "limits", "cluster.served:limits"),
    Part("docs/serving.md", "warnings", "cluster.served:warnings"),
    Part("docs/serving.md", "symptoms", "cluster.doctor.symptoms:documented"),
)


def stale(write: bool, root: Path = ROOT) -> list[str]:
    """The documents whose generated parts are not as they should be; written anew with `write`."""
    found = []
    for file in files(root):
        old = new = (root / file).read_text()
        for part in PARTS:
            new = part.replaced(new) if part.file == file else new
        new = pkgutil.resolve_name(TABLES)(new)
        if new != old:
            found.append(file)
            if write:
                (root / file).write_text(new)
    return found


def files(root: Path = ROOT) -> list[str]:
    """The documents, as paths from the root."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (root / "docs").glob("*.md"))]


def main(words: list[str]) -> int:
    check = words == ["--check"]
    try:
        found = stale(write=not check)
    except Exception as error:
        if not hasattr(error, "exit_code"):  # an error of ours is for the reader: a receipt that is missing or unsound
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    for file in found:
        print(f"{file}: {'not as generated; ' + COMMAND if check else 'written'}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
