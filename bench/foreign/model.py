"""A foreign document: what another tool's result file says, as data. It has no seal, because nothing in it can be recomputed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pydantic

from bench.errors import InvalidMeasurement
from bench.receipt import shown
from bench.trace import Fact

SCHEMA: Literal["spark-lab/foreign/v1"] = "spark-lab/foreign/v1"


class Row(Fact):
    """One figure set of the file. Throughputs in tokens per second, as that tool defines them; None: not stated.

    test: what the tool calls it. runs: measured requests or repeats. acceptance_length counts the bonus token, as ours does.
    """

    test: str
    lanes: int | None = None
    depth_tokens: int | None = None
    runs: int | None = None
    decode_tok_s: float | None = None
    decode_min_tok_s: float | None = None
    decode_max_tok_s: float | None = None
    total_tok_s: float | None = None
    prefill_tok_s: float | None = None
    ttft_s: float | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None


class Foreign(Fact):
    """tool: who measured. protocol: how its figures are defined. source_sha256: of the file that was imported, named source_file."""

    receipt: Literal["spark-lab/foreign/v1"] = SCHEMA
    sealed: Literal[False] = False
    tool: str
    protocol: str
    source_file: str
    source_sha256: str = pydantic.Field(pattern=r"^[0-9a-f]{64}$")
    created: str | None
    model: str | None
    rows: tuple[Row, ...] = pydantic.Field(min_length=1)
    notes: tuple[str, ...] = ()


def read(path: Path) -> Foreign:
    """The document at `path`. Raises InvalidMeasurement naming the field that is off."""
    try:
        return Foreign.model_validate_json(path.read_text(encoding="utf-8"))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InvalidMeasurement(f"{shown(path)}: field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable: {error}") from error


def text(foreign: Foreign) -> str:
    """The file's text."""
    return json.dumps(foreign.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
