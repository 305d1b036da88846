"""The sealed windows: texts of five strata, cut by a model's own tokenizer into windows of equal length.

panel.toml names the files with licence and sha256; a text that was changed is refused. A window holds `positions` + 1 tokens: row r is
the distribution after tokens[: r + 1], r < positions; the last token is sent only so that servers, which answer for a prompt's tokens
from the second on, give every row. No token is added in front.
"""

from __future__ import annotations

import hashlib
import itertools
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BadRequest, InvalidMeasurement

FOLDER = Path(__file__).resolve().parent / "windows"
POSITIONS = 512


@dataclass(frozen=True)
class Text:
    """One stratum's text. windows: how many are cut from its start. sha256: of the file's bytes."""

    stratum: str
    text: str
    windows: int
    licence: str
    sha256: str


@dataclass(frozen=True)
class Panel:
    """All texts. sha256: over the strata's names, windows and sha256."""

    name: str
    texts: tuple[Text, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\n".join(f"{text.stratum} {text.windows} {text.sha256}" for text in self.texts).encode()).hexdigest()


@dataclass(frozen=True)
class Window:
    """A sequence of `positions` + 1 token ids that is scored on its own; name like prose-3."""

    name: str
    stratum: str
    tokens: tuple[int, ...]

    @property
    def positions(self) -> int:
        return len(self.tokens) - 1

    @property
    def sha256(self) -> str:
        """Of the token ids, as decimal numbers with blanks between: two models with equal values saw the very same windows."""
        return hashlib.sha256(" ".join(map(str, self.tokens)).encode()).hexdigest()


def load(folder: Path = FOLDER) -> Panel:
    """The panel in `folder`. Raises InvalidMeasurement for a text that is missing or changed, BadRequest for a bad panel.toml."""
    path = folder / "panel.toml"
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        return Panel(plain["name"], tuple(_text(folder, each) for each in plain["text"]))
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BadRequest(f"{path} is no panel: {type(error).__name__}: {error}") from error


def _text(folder: Path, entry: dict[str, Any]) -> Text:
    path = folder / entry["file"]
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidMeasurement(f"{path} of the panel cannot be read: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != entry["sha256"]:
        raise InvalidMeasurement(f"{path} is not the sealed text: sha256 {digest}, panel.toml says {entry['sha256']}\ntry: git checkout")
    return Text(entry["stratum"], text, entry["windows"], entry["licence"], digest)


def cut(
    panel: Panel, encode: Callable[[str], Sequence[int]], positions: int = POSITIONS, per_stratum: int | None = None
) -> tuple[Window, ...]:
    """The panel's windows, or the first `per_stratum` of each text for a trial. `encode` gives token ids without special tokens.

    Raises BadRequest when a text has too few tokens for its windows.
    """
    return tuple(
        itertools.chain.from_iterable(_cut(text, encode(text.text), positions + 1, per_stratum or text.windows) for text in panel.texts)
    )


def _cut(text: Text, tokens: Sequence[int], length: int, count: int) -> list[Window]:
    if len(tokens) < length * count:
        need = f"{count} windows of {length} tokens need {length * count}"
        raise BadRequest(f"the {text.stratum} text has {len(tokens)} tokens with this tokenizer; {need}\ntry: fewer or shorter windows")
    cuts = (tokens[at * length : (at + 1) * length] for at in range(count))
    return [Window(f"{text.stratum}-{at}", text.stratum, tuple(int(token) for token in part)) for at, part in enumerate(cuts)]
