"""Kits: the physical sets, as data in `kits/*.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import pydantic

from cluster.errors import BadSettings

FOLDER = Path(__file__).resolve().parent.parent / "kits"


class Kit(pydantic.BaseModel, frozen=True, extra="forbid"):
    """One kit: its nodes in rank order, its engine, and the defaults that were tuned for it (setting name -> value)."""

    name: str
    summary: str
    engine: Literal["llama"]
    nodes: tuple[str, ...] = pydantic.Field(min_length=1)
    settings: dict[str, str | int | float | bool]


def names() -> list[str]:
    """The names of all kits, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Kit:
    """The kit called `name`. Raises BadSettings for an unknown name or a malformed file."""
    path = FOLDER / f"{name}.toml"
    if name not in names():
        raise BadSettings(f"KIT is '{name}'; known kits: {', '.join(names())}")
    try:
        return Kit.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, pydantic.ValidationError) as error:
        raise BadSettings(f"kits/{path.name} is malformed: {error}") from error
