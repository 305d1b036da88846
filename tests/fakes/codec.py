"""Scenario <-> JSON. Every value is checked against the annotation of its field; unknown keys are refused."""

import dataclasses
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tests.fakes import script

STEPS: dict[str, type[Any]] = {re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower(): cls for cls in get_args(script.Step)}
T = TypeVar("T")


def kind(step: script.Step) -> str:
    """Name of a step in JSON and in the records: content, tool_call, timings_usage, ..."""
    return next(name for name, cls in STEPS.items() if type(step) is cls)


def to_json(scenario: script.Scenario) -> str:
    return json.dumps(_encode(scenario), ensure_ascii=False, indent=1)


def from_json(text: str) -> script.Scenario:
    """Raise ValueError (which names the path of the fault) for anything a Scenario cannot hold."""
    return _decode(script.Scenario, json.loads(text), "scenario")


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        head = {"kind": kind(value)} if type(value) in STEPS.values() else {}  # type: ignore[arg-type]
        return head | {
            f.name: _encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.default is dataclasses.MISSING or getattr(value, f.name) != f.default
        }
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _decode(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: want an object, got {data!r}")
    hints = get_type_hints(cls)
    if unknown := sorted(set(data) - {f.name for f in dataclasses.fields(cls)}):  # type: ignore[arg-type]
        raise ValueError(f"{where}: unknown keys {unknown} for {cls.__name__}")
    values = {name: _convert(hints[name], item, f"{where}.{name}") for name, item in data.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as fault:
        raise ValueError(f"{where}: {fault}") from fault


def _step(data: Any, where: str) -> Any:
    if not isinstance(data, dict) or data.get("kind") not in STEPS:
        raise ValueError(f"{where}: want an object with kind in {sorted(STEPS)}, got {data!r}")
    return _decode(STEPS[data["kind"]], {key: item for key, item in data.items() if key != "kind"}, where)


def _union(hint: Any, data: Any, where: str) -> Any:
    faults = []
    for option in get_args(hint):
        try:
            return _convert(option, data, where)
        except ValueError as fault:
            faults.append(str(fault))
    raise ValueError(" / ".join(faults))


def _sequence(hint: Any, data: Any, where: str) -> Any:
    if not isinstance(data, list):
        raise ValueError(f"{where}: want a list, got {data!r}")
    return tuple(_convert(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(data))


def _literal(hint: Any, data: Any, where: str) -> Any:
    if data not in get_args(hint):
        raise ValueError(f"{where}: want one of {get_args(hint)}, got {data!r}")
    return data


def _mapping(hint: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: want an object, got {data!r}")
    return {key: _convert(get_args(hint)[1], item, f"{where}.{key}") for key, item in data.items()}


def _plain(hint: Any, data: Any, where: str) -> Any:
    if hint is Any or type(data) is hint or (hint is float and type(data) is int):
        return data
    raise ValueError(f"{where}: want {getattr(hint, '__name__', hint)}, got {data!r}")


_BY_ORIGIN: dict[Any, Callable[[Any, Any, str], Any]] = {
    Union: _union,
    types.UnionType: _union,
    Literal: _literal,
    Sequence: _sequence,
    Mapping: _mapping,
}


def _convert(hint: Any, data: Any, where: str) -> Any:
    if hint == script.Step:
        return _step(data, where)
    if dataclasses.is_dataclass(hint):
        return _decode(hint, data, where)  # type: ignore[arg-type]
    return _BY_ORIGIN.get(get_origin(hint), _plain)(hint, data, where)
