"""Every setting, and where its value came from: default < kit < .env < environment < flag.

The settings themselves are in fields.py; a field in lower case is the variable in upper case (`port` is PORT). An empty value
means "not set" for settings that may be None, and is an error for all others.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from cluster import dotenv, kits, recipe
from cluster.errors import BadSettings
from cluster.fields import AllSettings, Settings

ROOT = Path(__file__).resolve().parent.parent


FIELDS: Mapping[str, pydantic.fields.FieldInfo] = AllSettings.model_fields
NAMES = {name.upper(): name for name in FIELDS}
# The public recipe's name -> ours, where one name covers what is a setting of each node here.
ALIASES = {"HF_HOME": "HEAD_HF_HOME", "CACHE_ROOT": "HEAD_CACHE_ROOT"}


def is_secret(field: str) -> bool:
    return noted(field, "secret")


def noted(field: str, note: str) -> bool:
    """Whether the field carries the note `secret`, `local` or `place` (see fields.setting)."""
    extra = FIELDS[field].json_schema_extra
    return isinstance(extra, dict) and bool(extra[note])


@dataclass(frozen=True)
class Effective:
    """Settings with the source of each value: `default`, `kit local`, `.env line 3`, `environment` or `flag --port`."""

    settings: Settings
    sources: Mapping[str, str]
    kit: kits.Kit
    notes: tuple[str, ...] = ()

    def public(self) -> dict[str, Any]:
        """The settings as plain data; a secret that is set reads `***`."""
        values = self.settings.model_dump()
        return {name: "***" if is_secret(name) and value else value for name, value in values.items()}

    def fingerprint(self) -> dict[str, Any]:
        """What a running server is compared by: every setting that shapes it; secrets only as a short hash."""
        values = self.settings.model_dump(exclude={name for name in FIELDS if noted(name, "local")})
        return {name: _short_hash(value) if is_secret(name) and value else value for name, value in values.items()}


def _short_hash(value: str) -> str:
    return "sha256:" + hashlib.sha256(value.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Layer:
    """One source of values: variable name -> text or kit value, and variable name -> what to call the source."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]


def load(flags: Mapping[str, str | None] | None = None, environ: Mapping[str, str] | None = None, path: Path | None = None) -> Effective:
    """The effective settings. `flags`: setting name -> value for values given on the command line (None: not given).

    Raises BadSettings for an unknown name in `.env` or a kit, with the nearest known one, and for every bad value.
    """
    environ = os.environ if environ is None else environ
    given = {name.upper(): value for name, value in (flags or {}).items() if value is not None}
    file, notes = _dotenv_layer(path or ROOT / ".env", environ)
    known = {**NAMES, **ALIASES}
    layers = [
        file,
        Layer({n: environ[n] for n in known if n in environ}, dict.fromkeys(known, "environment")),
        Layer(given, {n: f"flag --{n.lower().replace('_', '-')}" for n in given}),
    ]
    kit = kits.load(_kit_name(layers))
    _refuse_unknown(kit.settings, dict.fromkeys(kit.settings, f"kits/{kit.name}.toml"))
    layers.insert(0, Layer(kit.settings, dict.fromkeys(kit.settings, f"kit {kit.name}")))
    return _merge(layers, kit, notes)


def _kit_name(layers: list[Layer]) -> str:
    """The kit that is named; else spark2 where `.env` names a worker, as the public recipe's files do; else local."""
    for layer in reversed(layers):
        if layer.values.get("KIT"):
            return str(layer.values["KIT"])
    return "spark2" if layers[0].values.get("WORKER_IP") else str(FIELDS["kit"].default)


def _dotenv_layer(path: Path, environ: Mapping[str, str]) -> tuple[Layer, tuple[str, ...]]:
    """The file as a layer, and a note for each retired name in it."""
    if not path.exists():
        return Layer({}, {}), ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"cannot read {path.name}: {error}") from error
    entries = dotenv.parse(text, environ, path.name)
    sources = {entry.name: f"{path.name} line {entry.line}" for entry in entries}
    unknown = [name for name in sources if name not in NAMES and name not in ALIASES]
    why = {name: reason for name in unknown if (reason := recipe.retired(name))}
    notes = tuple(f"{sources[name]}: {name} has no effect here: {reason}" for name, reason in why.items())
    kept = recipe.passed_on({entry.name: entry.value for entry in entries if entry.name not in why})
    sources.setdefault(recipe.EXTRA, path.name)  # where only variables of the overlay were moved into it
    _refuse_unknown(kept, sources)
    return Layer(kept, sources), notes


def _refuse_unknown(names: Mapping[str, Any], where: Mapping[str, str]) -> None:
    for name in names:
        if name not in NAMES and name not in ALIASES:
            near = difflib.get_close_matches(name, [*NAMES, *ALIASES], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "invoke config lists every setting"
            raise BadSettings(f"{where[name]}: unknown setting {name}", hint=hint)


def _merge(layers: list[Layer], kit: kits.Kit, notes: tuple[str, ...]) -> Effective:
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    for layer in layers:
        for name, value in layer.values.items():
            field = NAMES[ALIASES.get(name, name)]
            values[field] = _empty_is_none(name, field, value, layer.sources[name])
            sources[field] = layer.sources[name]
    values["kit"] = kit.name
    try:
        return Effective(AllSettings.model_validate(values), sources, kit, notes)
    except pydantic.ValidationError as error:
        raise BadSettings(_explain(error, sources)) from error


def _empty_is_none(name: str, field: str, value: Any, source: str) -> Any:
    if value != "":
        return value
    if type(None) in typing.get_args(FIELDS[field].annotation):
        return None
    raise BadSettings(f"{source}: {name} is empty", hint=f"give a value, or remove the line to get the default: {name}=...")


def _explain(error: pydantic.ValidationError, sources: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        field = str(problem["loc"][0])
        shown = "***" if is_secret(field) else repr(problem["input"])
        lines.append(f"{sources[field]}: {field.upper()} is {shown}: {problem['msg']}")
    return "\n".join(lines)


def difference(running: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`NAME: old -> new` for every setting that differs between two fingerprints."""
    names = sorted({*running, *wanted})
    return [f"{n.upper()}: {running.get(n)} -> {wanted.get(n)}" for n in names if running.get(n) != wanted.get(n)]


def example() -> str:
    """The text of `.env.example`: every setting, commented out, with its default and meaning."""
    lines = [
        "# Every setting with its default. Copy to .env and take away the # of what you want to change.",
        "# Order of precedence: default < kit (kits/*.toml) < .env < environment < flag. `invoke config` shows values and sources.",
        "# Written by `invoke config --write-example`; a test keeps it equal to the settings.",
    ]
    for name, field in FIELDS.items():
        default = "" if field.default is None else field.default
        lines += ["", f"# {field.description}", f"#{name.upper()}={default}"]
    return "\n".join(lines) + "\n"


def as_json(effective: Effective) -> str:
    """`invoke config --json`: one object, setting name -> value, source, meaning."""
    public = effective.public()
    rows = {
        name.upper(): {"value": public[name], "source": effective.sources[name], "meaning": field.description}
        for name, field in FIELDS.items()
    }
    return json.dumps(rows, indent=2)
