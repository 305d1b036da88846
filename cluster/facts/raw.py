"""The node agent's answer to one look, with access by source. See cluster/agent_facts.py for what is read."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Raw:
    """files: path -> text. runs: key -> {code, out, err}, None when there is no such tool. node: what needed no parser."""

    files: Mapping[str, str]
    runs: Mapping[str, Mapping[str, Any] | None]
    node: Mapping[str, Any]

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def number(self, path: str) -> int | None:
        """A whole number that stands alone in a file; None for anything else."""
        text = self.files.get(path, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def out(self, key: str) -> str | None:
        """What a command printed, when it succeeded."""
        run = self.runs.get(key)
        return str(run["out"]) if run and run["code"] == 0 else None

    def error(self, key: str) -> str | None:
        """Why a command that was there did not succeed; None when it did, or was not there."""
        run = self.runs.get(key)
        return (str(run["err"]).strip() or str(run["out"]).strip() or f"exit {run['code']}") if run and run["code"] != 0 else None

    def data(self, key: str) -> Any:
        """A command's output as JSON; None when it is none."""
        return parsed(self.out(key))

    def rows(self, key: str) -> list[dict[str, Any]]:
        """A command's output as a list of JSON objects; what is no object is left out."""
        found = self.data(key)
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []

    def matching(self, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
        """The files whose whole path matches, with the match and the text."""
        for path, text in self.files.items():
            match = re.fullmatch(pattern, path)
            if match:
                yield match, text

    @property
    def late(self) -> tuple[str, ...]:
        """The commands that gave no answer in time."""
        return tuple(key for key, run in self.runs.items() if run and run["code"] is None)


def parsed(text: str | None) -> Any:
    """JSON, or None."""
    try:
        return json.loads(text or "")
    except ValueError:
        return None


def table(text: str | None) -> list[dict[str, str]]:
    """The rows of `nvidia-smi --format=csv`: column name without its unit -> value without its unit; "N/A" values are left out."""
    lines = list(csv.reader((text or "").splitlines(), skipinitialspace=True))
    if not lines:
        return []
    names = [re.sub(r"\s*\[.*\]$", "", name).strip() for name in lines[0]]
    return [{name: value.strip() for name, value in zip(names, row, strict=False) if known(value)} for row in lines[1:]]


def known(value: str) -> bool:
    """Whether nvidia-smi gave a value: it writes N/A, [N/A], [Not Supported] and the like where it has none."""
    return bool(value.strip()) and not re.match(r"\[|N/A|ERR", value.strip())


def quantity(text: str | None) -> float | None:
    """The number in front of a unit: "208 MHz" is 208."""
    match = re.match(r"-?\d+(\.\d+)?", text or "")
    return float(match[0]) if match else None
