"""Receipts: one sealed JSON file per boot and phase, holding the raw facts and every figure derived from them.

Schema `spark-lab/receipt/v1`, exported to bench/schema/receipt-v1.json. The seal is the sha256 of the canonical JSON (sorted
keys, no blanks, UTF-8) of everything but the seal. Unknown is null. No user names, host names, addresses or secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic

from bench.counters import Counters
from bench.errors import BadRequest, InvalidMeasurement
from bench.hygiene import Hygiene
from bench.measure import RequestMetrics
from bench.proofs import CacheProof, Health, Isolation, ProbeResult
from bench.rounds import Place, Round, Shape
from bench.summarize import Summary
from bench.trace import Fact, Trace, Usage

SCHEMA: Literal["spark-lab/receipt/v1"] = "spark-lab/receipt/v1"


class Tool(Fact):
    """What measured: this project's version and commit, the sources' hash, and the client library."""

    name: str
    version: str
    git_commit: str | None
    git_dirty: bool | None
    bench_sha256: str
    client: str
    python: str


class System(Fact):
    """What was measured, as far as it could be read; all None for a server that this tool did not launch.

    argv: the command of rank 0. hardware: rank 0's machine, where it is this one.
    """

    kit: str | None = None
    engine: str | None = None
    argv: tuple[str, ...] | None = None
    weights: dict[str, str | None] | None = None
    settings: dict[str, str | int | float | bool | None] | None = None
    boot: str | None = None
    boot_age_s: float | None = None
    hardware: dict[str, str | int | float | None] | None = None


class Slot(Fact):
    """The place in a plan (see bench/campaign) that the boot filled: the plan's seal, the slot from 0, and which attempt at it.

    Receipts that belong to no plan have none.
    """

    plan: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")
    slot: int = pydantic.Field(ge=0)
    attempt: int = pydantic.Field(ge=1)


class Sent(Fact):
    """One prompt of the protocol; the text is that of the workload file, without the salt."""

    id: str
    sha256: str


class Protocol(Fact):
    """How it was measured. Two receipts may be compared only when these agree.

    runs: rounds, each with every prompt once, where the phase is of that kind. requests: all measured requests. natural_end: answers
    may end by themselves; else all must reach their token limit. depth_tokens: length that the prompts were fitted to, 0 = just the
    task. The fields with a default came later: a receipt without them was measured without what they state.
    """

    phase: str
    prompts: tuple[Sent, ...]
    runs: int
    max_tokens: int
    temperature: float
    top_p: float
    thinking: bool
    salted: bool
    warm_up: str
    concurrency: int
    dialect: Literal["vllm", "llamacpp", "openai"]
    natural_end: bool | None = None
    depth_tokens: int | None = None
    requests: int | None = None
    shape: Shape | None = None


class Run(Fact):
    """One measured request: what was sent, the raw trace, the counter readings around it, and what follows from them.

    A request that ran with others shares the readings and the hygiene of its Round, see `place`; its own are None.
    """

    index: int
    prompt: str
    salt: str | None
    started_utc: str
    request_sha256: str
    place: Place | None = None
    hygiene: Hygiene | None = None
    cache: CacheProof | None = None
    trace: Trace
    before: Counters | None
    after: Counters | None
    metrics: RequestMetrics
    isolation: Isolation
    health: Health


class Migrated(Fact):
    """Where a migrated receipt comes from: the seal of the original, and the derived fields whose value the present rules changed."""

    from_seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")
    changed: tuple[str, ...]


class Payload(Fact):
    """A receipt without its seal."""

    receipt: Literal["spark-lab/receipt/v1"] = SCHEMA
    id: str
    created_utc: str
    arm: str
    plan: Slot | None = None
    model: str
    valid: bool
    invalid_because: tuple[str, ...]
    failed_gates: tuple[str, ...]
    notes: tuple[str, ...]
    tool: Tool
    system: System
    warm_up: Usage | None = None  # the token counts of the unmeasured first request
    protocol: Protocol
    rounds: tuple[Round, ...] = ()
    runs: tuple[Run, ...]
    coherence: tuple[ProbeResult, ...] | None
    summary: Summary
    migrated: Migrated | None = None


class Receipt(Payload):
    """A sealed payload."""

    seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")


def shown(path: Path) -> str:
    """The path as a person here would name it: relative to the current folder when it is inside."""
    return os.path.relpath(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


def canonical(value: Any) -> str:
    """Canonical JSON of plain data."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def seal_of(payload: dict[str, Any]) -> str:
    """The seal for plain data that may or may not hold a `seal` already."""
    bare = {key: value for key, value in payload.items() if key != "seal"}
    return "sha256:" + hashlib.sha256(canonical(bare).encode()).hexdigest()


def seal(payload: Payload) -> Receipt:
    """The payload with its seal."""
    plain = payload.model_dump(mode="json")
    return Receipt.model_validate({**plain, "seal": seal_of(plain)})


def write(receipt: Receipt, path: Path) -> None:
    """Write atomically: one line per top-level key, so that a diff shows which part changed."""
    plain = receipt.model_dump(mode="json")
    text = "{\n" + ",\n".join(f"{json.dumps(key)}: {canonical(plain[key])}" for key in sorted(plain)) + "\n}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def find(paths: Sequence[Path]) -> list[Path]:
    """The receipt files among `paths`; a folder stands for its *.json, not for those under invalid/.

    Raises BadRequest for a path that does not exist or when there is none at all.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise BadRequest(f"no such receipt or folder: {', '.join(missing)}\ntry: invoke bench (writes one)")
    found = [file for path in paths for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
    if not found:
        raise BadRequest(f"no receipt in {', '.join(map(str, paths))}\ntry: invoke bench")
    return found


def read(path: Path) -> Receipt:
    """Read and validate one receipt: schema and seal, not yet the arithmetic (see check.py). Raises InvalidMeasurement."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    if not isinstance(plain, dict) or plain.get("receipt") != SCHEMA:
        found = plain.get("receipt") if isinstance(plain, dict) else type(plain).__name__
        raise InvalidMeasurement(f"{shown(path)}: field receipt: is {found!r}, this tool reads {SCHEMA}")
    try:
        receipt = Receipt.model_validate_json(json.dumps(plain))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidMeasurement(f"{shown(path)}: field {where or 'receipt'}: {first['msg']}") from error
    if receipt.seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: field seal: does not fit the contents; the file was changed after it was sealed")
    return receipt


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
