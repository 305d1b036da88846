"""Which kind of receipt a file holds, and what can be asked of each kind.

A kind is one row of KINDS. Its functions are named as `module:function` and imported when first used, so that listing the tasks
costs nothing and a kind may need packages that others do not.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.errors import InvalidMeasurement
from bench.receipt import shown

Row = TypeVar("Row")


@dataclass(frozen=True)
class Card:
    """What every kind of receipt can say of itself. seal None: foreign, nothing proves it. reasons: why it is not valid.

    settings: the recorded settings that hold for the measured arm, None where unknown. supports: it speaks for these settings; a
    regression does not.
    """

    kind: str
    id: str
    seal: str | None
    created_utc: str | None
    model: str | None
    kit: str | None
    reasons: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    supports: bool = True

    @property
    def valid(self) -> bool:
        return self.seal is not None and not self.reasons


@dataclass(frozen=True)
class Kind:
    """A kind of receipt. schema: the value of the field `receipt` in its files.

    check: path -> document; raises InvalidMeasurement naming the first field that is off. card: document -> Card.
    table: documents -> Grid. block: documents -> lines of markdown for a pull request, after a heading that holds `title`.
    points: documents -> rows of bench.quality, "" for a kind without such figures.
    """

    schema: str
    word: str
    title: str
    check: str
    card: str
    table: str
    block: str
    points: str = ""


KINDS = (
    Kind(
        "spark-lab/comparison/v1",
        "comparison",
        "Verdict",
        "bench.compare.check:check",
        "bench.kinds.comparison:card",
        "bench.kinds.comparison:table",
        "bench.kinds.comparison:block",
    ),
    Kind(
        "spark-lab/receipt/v1",
        "performance",
        "Performance",
        "bench.check:check",
        "bench.kinds.performance:card",
        "bench.table:grid",
        "bench.kinds.performance:block",
    ),
    Kind(
        "spark-lab/foreign/v1",
        "foreign",
        "Figures of other tools",
        "bench.foreign.model:read",
        "bench.kinds.foreign:card",
        "bench.kinds.foreign:table",
        "bench.kinds.foreign:block",
    ),
    Kind(
        "spark-lab/kld/v1",
        "kld",
        "Quality: KL divergence",
        "bench.kld.receipt:check",
        "bench.kinds.kld:card",
        "bench.kinds.kld:table",
        "bench.kinds.kld:block",
        "bench.kinds.kld:points",
    ),
    Kind(
        "spark-lab/ablation/v1",
        "ablation",
        "Ablation",
        "ablit.receipt:check",
        "ablit.kind:card",
        "ablit.kind:grid",
        "ablit.kind:block",
        "ablit.kind:points",
    ),
)
WORDS = tuple(kind.word for kind in KINDS)


def call(function: str) -> Callable[..., Any]:
    """The function named `module:function`."""
    found: Callable[..., Any] = pkgutil.resolve_name(function)
    return found


def points(pile: Pile, type: type[Row]) -> list[Row]:
    """The rows of bench.quality of that type, of every kind that has some."""
    found = [call(kind.points)([each.document for each in pile.of(kind.word)]) for kind in KINDS if kind.points]
    return [point for some in found for point in some if isinstance(point, type)]


def by_word(word: str) -> Kind:
    return next(kind for kind in KINDS if kind.word == word)


def kind_of(path: Path) -> Kind | None:
    """The kind of the file's document, None for JSON that is no receipt. Raises InvalidMeasurement for what is not JSON, and for a
    receipt of a schema that no kind reads."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    schema = plain.get("receipt") if isinstance(plain, dict) else None
    if not isinstance(schema, str):
        return None
    found = next((kind for kind in KINDS if kind.schema == schema), None)
    if found is None and schema.rpartition("/")[0] in {kind.schema.rpartition("/")[0] for kind in KINDS}:
        raise InvalidMeasurement(f"{shown(path)}: field receipt: is {schema!r}, which this version does not read\ntry: a newer version")
    return found


@dataclass(frozen=True)
class Found:
    """A sound document and where it lies."""

    path: Path
    kind: Kind
    document: Any

    @property
    def card(self) -> Card:
        card: Card = call(self.kind.card)(self.document)
        return card


@dataclass
class Pile:
    """Receipts of all kinds: the sound ones, and a line for each that was left out with the reason."""

    found: list[Found] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def of(self, word: str) -> list[Found]:
        return [each for each in self.found if each.kind.word == word]


def load(paths: Sequence[Path], words: Sequence[str] = WORDS) -> Pile:
    """Check every file of the kinds `words`; files of other kinds are passed over, broken ones named in left_out. Receipts that are
    sound but marked invalid are left out too."""
    pile = Pile()
    for path in paths:
        try:
            kind = kind_of(path)
            if kind is None or kind.word not in words:
                continue
            found = Found(path, kind, call(kind.check)(path))
            reasons = found.card.reasons
        except InvalidMeasurement as error:
            pile.left_out.append(str(error))
            continue
        if reasons:
            pile.left_out.append(f"{shown(path)}: marked invalid: {'; '.join(reasons)}")
        else:
            pile.found.append(found)
    return pile


def documents(folder: Path) -> list[Path]:
    """Every JSON file under `folder`, those under invalid/ left out, in the order of their paths."""
    return [path for path in sorted(folder.rglob("*.json")) if "invalid" not in path.relative_to(folder).parts]
