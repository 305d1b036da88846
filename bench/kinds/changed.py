"""What a change set (a pull request) brings: its receipts must all be sound, and a changed kit default needs one that speaks for it."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BadRequest, InvalidMeasurement
from bench.kinds.registry import Card, call, kind_of
from bench.receipt import shown

# Fields of a kit file that say what it is called, not what it does.
_WORDS = ("name", "summary")
_NOT_KITS = ("checkpoints",)


@dataclass(frozen=True)
class Changes:
    """Paths from the root, under results/ and kits/: what was added or changed, and what was removed. base: the commit compared with."""

    root: Path
    base: str
    present: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def documents(self) -> list[Path]:
        """The changed JSON files under results/."""
        return [self.root / name for name in self.present if name.startswith("results/") and name.endswith(".json")]

    @property
    def kits(self) -> list[str]:
        names = [name for name in (*self.present, *self.removed) if name.startswith("kits/") and name.endswith(".toml")]
        return [name for name in names if Path(name).stem not in _NOT_KITS]


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BadRequest(f"git {' '.join(args)} failed: {said}\ntry: a revision that this clone has (CI: fetch the whole history)")
    return done.stdout


def since(root: Path, revision: str) -> Changes:
    """What the working tree (committed or not) has changed since it left `revision`. Raises BadRequest for an unknown revision."""
    base = _git(root, "merge-base", "--", revision, "HEAD").strip()
    words = _git(root, "diff", "--name-status", "--no-renames", "-z", base, "--", "results", "kits").split("\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "results", "kits").split("\0")[:-1]
    present = [path for status, path in pairs if status != "D"]
    return Changes(root, base, tuple(sorted({*present, *new})), tuple(path for status, path in pairs if status == "D"))


@dataclass(frozen=True)
class Verdict:
    """good: a line per sound receipt. problems: what makes the change set fail. notes: what a reviewer should see."""

    good: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def judge(changes: Changes) -> Verdict:
    """Check every changed receipt, then every changed kit against them."""
    good, problems, cards = [], [], []
    for path in changes.documents:
        try:
            card = _card(path)
        except InvalidMeasurement as error:
            problems.append(str(error))
            continue
        if card is None:
            continue
        if card.reasons and "invalid" not in path.parts:
            problems.append(f"{shown(path)}: marked invalid ({'; '.join(card.reasons)}), so it belongs into a folder invalid/")
            continue
        good.append(f"{shown(path)}: {card.kind}, sound, {'valid' if card.valid else 'not evidence'}")
        cards += [card] if card.valid and card.supports else []
    for name in changes.kits:
        problems += _unproven(name, _at(changes, name), _now(changes, name), cards)
    notes = [f"{name}: was removed" for name in changes.removed if name.startswith("results/")]
    return Verdict(tuple(good), tuple(problems), tuple(notes))


def _card(path: Path) -> Card | None:
    kind = kind_of(path)
    card: Card | None = None if kind is None else call(kind.card)(call(kind.check)(path))
    return card


def _now(changes: Changes, name: str) -> dict[str, Any]:
    path = changes.root / name
    return _kit(path.read_text(encoding="utf-8"), name) if path.exists() else {}


def _at(changes: Changes, name: str) -> dict[str, Any]:
    known = _git(changes.root, "ls-tree", "--name-only", changes.base, "--", name).strip()
    return _kit(_git(changes.root, "show", f"{changes.base}:{name}"), name) if known else {}


def _kit(text: str, name: str) -> dict[str, Any]:
    """The kit's fields, its settings by lower-case name beside them. Comments do not count."""
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidMeasurement(f"{name}: not readable as TOML: {error}") from error
    fields = {key: value for key, value in plain.items() if key not in (*_WORDS, "settings")}
    return {**fields, **{key.lower(): value for key, value in plain.get("settings", {}).items()}}


def _unproven(name: str, old: Mapping[str, Any], new: Mapping[str, Any], cards: Sequence[Card]) -> list[str]:
    """A line for each default of the kit that changed without a receipt of the change set that speaks for it. A removed kit needs none."""
    if not new:
        return []
    kit = Path(name).stem
    own = [card for card in cards if card.kit == kit]
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [
        f"{name}: {key.upper()} changed from {old.get(key)!r} to {new.get(key)!r}, but no valid receipt of kit {kit} "
        f"in this change was measured with it"
        for key in changed
        if not any(_speaks(card, key, old, new) for card in own)
    ]


def _speaks(card: Card, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the receipt was measured with the new value. Of a setting that receipts do not record (an address, a port), any
    receipt of the kit speaks; of one that went back to the general default, one that does not have the old value."""
    if card.settings is None:
        return False
    if card.kind == "performance" and key not in card.settings:
        return True
    if key in new:
        return key in card.settings and _plain(card.settings[key]) == _plain(new[key])
    return key in card.settings and _plain(card.settings[key]) != _plain(old[key])


def _plain(value: Any) -> str:
    """Kit files and receipts write the same value in different types: 1 and "1", "" and null."""
    return "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)
