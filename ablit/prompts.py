"""Prompt files: UTF-8, one prompt a line; lines that begin with # and empty ones do not count. Pure but for `read`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BadRequest

DATASET = "# dataset "  # how the first line of a prompt file begins that was made from one
FOLDER = Path(__file__).resolve().parent / "prompts"
# behaviour -> (side that asks for it, side that asks for its opposite)
PAIRS = {"brief": ("brief", "long"), "casual": ("casual", "formal"), "hedged": ("hedged", "direct")}


@dataclass(frozen=True)
class Prompts:
    """A file's prompts in order; sha256 of the file's bytes. `source`: its first line, if that names a dataset (ablit/datasets.py)."""

    name: str
    texts: tuple[str, ...]
    sha256: str
    source: str = ""

    def first(self, count: int | None) -> Prompts:
        """The first `count`, of the same file; all of them for None. Raises BadRequest when there are fewer."""
        if count is not None and not 1 <= count <= len(self.texts):
            raise BadRequest(f"{self.name} has {len(self.texts)} prompts: {count} cannot be taken\ntry: 1 to {len(self.texts)}")
        return dataclasses.replace(self, texts=self.texts[:count])


def normal(text: str) -> str:
    """Two prompts with the same normal form count as the same: case and blanks do not tell them apart."""
    return " ".join(text.split()).casefold()


def read(path: Path) -> Prompts:
    """Raises BadRequest: not readable, no prompt in it, or one that is there twice."""
    try:
        content = path.read_bytes()
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"prompt file {path} cannot be read: {error}\ntry: a UTF-8 text file, one prompt a line") from error
    texts = tuple(line for line in lines if line and not line.startswith("#"))
    if not texts:
        raise BadRequest(f"prompt file {path} has no prompt\ntry: one prompt a line")
    if twice := repeated(texts):
        raise BadRequest(f"prompt file {path} has a prompt twice: {twice!r}\ntry: remove one")
    source = lines[0].removeprefix("# ") if lines[0].startswith(DATASET) else ""
    return Prompts(path.name, texts, hashlib.sha256(content).hexdigest(), source)


def repeated(texts: Iterable[str]) -> str | None:
    """The first text whose normal form came before."""
    seen: set[str] = set()
    for text in texts:
        if normal(text) in seen:
            return text
        seen.add(normal(text))
    return None


def apart(fit: Iterable[Prompts], held_out: Iterable[Prompts]) -> None:
    """Raises BadRequest when a held-out prompt is one that the direction was fitted on: its effect would be no evidence."""
    fitted = {normal(text): prompts.name for prompts in fit for text in prompts.texts}
    for prompts in held_out:
        for text in prompts.texts:
            if normal(text) in fitted:
                raise BadRequest(
                    f"{prompts.name}: held out, but the direction was fitted on it ({fitted[normal(text)]}): {text!r}\n"
                    "try: prompts on other topics"
                )


def unlike_fit(held_out: Sequence[Prompts], given: Sequence[Prompts], notes: Mapping[str, str]) -> str | None:
    """Hold the prompts against the fit of a direction file with these `notes`. given: files that the user names as those of the fit.

    A line for the user when not all of the fit is known; None when it is. Raises BadRequest for a prompt, or a whole file, of the fit.
    """
    fit = {notes[f"{side}_sha256"]: notes.get(side, side) for side in ("positive", "negative") if notes.get(f"{side}_sha256")}
    for each in held_out:
        if each.sha256 in fit:
            raise BadRequest(f"{each.name}: held out, but the direction was fitted on this very file\ntry: prompts on other topics")
    sides = sorted({side for pair in PAIRS.values() for side in pair})
    known = [*given, *(each for side in sides if (each := shipped(side, "fit")).sha256 in fit)]
    apart(known, held_out)
    absent = [name for digest, name in fit.items() if digest not in {each.sha256 for each in known}]
    unchecked = "held-out prompts were not checked against the fit"
    if absent:
        return f"{unchecked} on {' and '.join(absent)}: name the same files with --positive and --negative"
    if not fit and len(given) < 2:
        return f"{unchecked}: the direction file does not say what it was made of; name the files with --positive and --negative"
    return None


def shipped(side: str, split: str) -> Prompts:
    """A file of ours: side brief, long, casual, formal, hedged or direct; split fit or held-out."""
    return read(FOLDER / f"{side}.{split}.txt")
