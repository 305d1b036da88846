"""Every setting, and where its value came from: default < kit < .env < environment < flag.

A field's name in lower case is the variable's name in upper case (`port` is PORT). An empty value means "not set" for
settings that may be None, and is an error for all others.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic

from cluster import dotenv, kits
from cluster.errors import BadSettings

ROOT = Path(__file__).resolve().parent.parent


def _setting(default: Any, meaning: str, **limits: Any) -> Any:
    secret = limits.pop("secret", False)
    return pydantic.Field(default, description=meaning, json_schema_extra={"secret": secret}, **limits)


class Settings(pydantic.BaseModel, frozen=True, extra="forbid"):
    """The effective settings of one launch. Sizes in tokens, times in seconds."""

    kit: str = _setting("local", "which physical set to use: a name from kits/")
    host: str = _setting("127.0.0.1", "address the API listens on; 0.0.0.0 opens it to the network (then set VLLM_API_KEY)")
    port: int = _setting(8888, "TCP port of the API on the head", ge=1, le=65535)
    served_model_name: str = _setting("GLM-5.3-Flash-EXL3", "model id that requests name", min_length=1)
    vllm_api_key: str | None = _setting(None, "bearer token that /v1 requests must carry; empty: none needed", secret=True)
    max_model_len: int = _setting(8192, "longest prompt plus answer of one request, tokens", ge=256, le=1_000_000)
    max_num_seqs: int = _setting(4, "requests decoded at the same time", ge=1, le=4096)
    spec_method: Literal["ngram", "none"] = _setting("none", "speculative decoding: ngram or none")
    ngram_tokens: int = _setting(7, "ngram: tokens drafted per step", ge=1, le=48)
    ngram_match: int = _setting(4, "ngram: how many last tokens must occur earlier for a draft", ge=1, le=32)
    threads: int = _setting(1, "local: inference threads; two collapse when the cores are shared", ge=1, le=256)
    ready_timeout: float = _setting(3600, "longest wait from launch to ready, seconds", gt=0, allow_inf_nan=False)


FIELDS: Mapping[str, pydantic.fields.FieldInfo] = Settings.model_fields
NAMES = {name.upper(): name for name in FIELDS}


def is_secret(field: str) -> bool:
    extra = FIELDS[field].json_schema_extra
    return isinstance(extra, dict) and bool(extra["secret"])


@dataclass(frozen=True)
class Effective:
    """Settings with the source of each value: `default`, `kit local`, `.env line 3`, `environment` or `flag --port`."""

    settings: Settings
    sources: Mapping[str, str]
    kit: kits.Kit

    def public(self) -> dict[str, Any]:
        """The settings as plain data; a secret that is set reads `***`."""
        values = self.settings.model_dump()
        return {name: "***" if is_secret(name) and value else value for name, value in values.items()}

    def fingerprint(self) -> dict[str, Any]:
        """What a running server is compared by: every setting that shapes it; secrets only as a short hash."""
        values = self.settings.model_dump(exclude={"ready_timeout"})
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
    layers = [
        _dotenv_layer(path or ROOT / ".env", environ),
        Layer({n: environ[n] for n in NAMES if n in environ}, dict.fromkeys(NAMES, "environment")),
        Layer(given, {n: f"flag --{n.lower().replace('_', '-')}" for n in given}),
    ]
    kit = kits.load(_kit_name(layers))
    _refuse_unknown(kit.settings, dict.fromkeys(kit.settings, f"kits/{kit.name}.toml"))
    layers.insert(0, Layer(kit.settings, dict.fromkeys(kit.settings, f"kit {kit.name}")))
    return _merge(layers, kit)


def _kit_name(layers: list[Layer]) -> str:
    for layer in reversed(layers):
        if layer.values.get("KIT"):
            return str(layer.values["KIT"])
    return str(FIELDS["kit"].default)


def _dotenv_layer(path: Path, environ: Mapping[str, str]) -> Layer:
    if not path.exists():
        return Layer({}, {})
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"cannot read {path.name}: {error}") from error
    entries = dotenv.parse(text, environ, path.name)
    sources = {entry.name: f"{path.name} line {entry.line}" for entry in entries}
    _refuse_unknown(sources, sources)
    return Layer({entry.name: entry.value for entry in entries}, sources)


def _refuse_unknown(names: Mapping[str, Any], where: Mapping[str, str]) -> None:
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "invoke config lists every setting"
            raise BadSettings(f"{where[name]}: unknown setting {name}", hint=hint)


def _merge(layers: list[Layer], kit: kits.Kit) -> Effective:
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    for layer in layers:
        for name, value in layer.values.items():
            values[NAMES[name]] = _empty_is_none(name, value, layer.sources[name])
            sources[NAMES[name]] = layer.sources[name]
    try:
        return Effective(Settings.model_validate(values), sources, kit)
    except pydantic.ValidationError as error:
        raise BadSettings(_explain(error, sources)) from error


def _empty_is_none(name: str, value: Any, source: str) -> Any:
    if value != "":
        return value
    if FIELDS[NAMES[name]].default is None:
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
