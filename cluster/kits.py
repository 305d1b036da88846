"""Kits: the physical sets, as data in `kits/*.toml`; and the public checkpoints, as data in `kits/checkpoints.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import pydantic

from cluster.errors import BadSettings

FOLDER = Path(__file__).resolve().parent.parent / "kits"
_CHECKPOINTS = "checkpoints"
Role = Literal["local", "head", "worker", "worker2", "worker3"]


class Kit(pydantic.BaseModel):
    """One kit: its nodes by role in rank order, engine, and the defaults tuned for it (setting name -> value).

    hardware gb10: NVIDIA DGX Sparks, where the constraints of the real model apply. topology: how the nodes are cabled; single
    is this machine alone.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    engine: Literal["llama", "vllm"]
    hardware: Literal["cpu", "gb10"]
    topology: Literal["single", "pair", "triangle", "switched", "ring"]
    nodes: tuple[Role, ...] = pydantic.Field(min_length=1)
    settings: dict[str, str | int | float | bool]


class Checkpoint(pydantic.BaseModel):
    """A public pack of weights. How many shards it has is read from its index file, never assumed."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    repo: str
    revision: str = pydantic.Field(pattern=r"^[0-9a-f]{40}$")
    licence: str
    note: str


def names() -> list[str]:
    """The names of all kits, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != _CHECKPOINTS)


def load(name: str) -> Kit:
    """The kit called `name`. Raises BadSettings for an unknown name or a malformed file."""
    path = FOLDER / f"{name}.toml"
    if name not in names():
        raise BadSettings(f"KIT is '{name}'; known kits: {', '.join(names())}")
    try:
        return Kit.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, pydantic.ValidationError) as error:
        raise BadSettings(f"kits/{path.name} is malformed: {error}") from error


def checkpoints() -> dict[str, Checkpoint]:
    """The public packs by short name."""
    rows = tomllib.loads((FOLDER / f"{_CHECKPOINTS}.toml").read_text())
    return {name: Checkpoint.model_validate(row) for name, row in rows.items()}
