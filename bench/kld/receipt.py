"""KLD receipts: one sealed JSON file per comparison, `spark-lab/kld/v1`, with every position, from which all figures follow."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic

from bench import sealed
from bench.check import first_difference
from bench.errors import InvalidMeasurement
from bench.kld.positions import Positions, packed, unpacked
from bench.kld.summary import Summary, nats, summarize
from bench.provenance import tool, without_private
from bench.receipt import Tool, seal_of, shown
from bench.trace import Fact

SCHEMA: Literal["spark-lab/kld/v1"] = "spark-lab/kld/v1"


class Side(Fact):
    """The reference or the candidate. edit: what was done to its weights. capture: the seal of its capture, None when scored directly."""

    model: str
    edit: str
    weights_sha256: str | None
    dtype: str | None
    source: Literal["in-process", "served"]
    capture: str | None


class Scored(Fact):
    """One window's positions, as bench.kld.positions packs them."""

    name: str
    stratum: str
    tokens_sha256: str
    kld: str
    flags: str

    def positions(self) -> Positions:
        return unpacked({"kld": self.kld, "flags": self.flags})


class Floor(Fact):
    """The same reference captured twice: what a KLD of the same model comes out as. Sums in micronats, by window; nats for the rest."""

    first: str
    second: str
    sums: tuple[int, ...]
    positions: tuple[int, ...]
    mean: float
    max_window_mean: float


class Payload(Fact):
    """A receipt without its seal. lower_bound: the support is the top k and the rest, so the KLD over the whole vocabulary is larger.

    above_floor: the interval lies wholly above the floor's mean; None without a floor. differs: what the two may differ in by intent.
    """

    receipt: Literal["spark-lab/kld/v1"] = SCHEMA
    id: str
    created_utc: str
    reference: Side
    candidate: Side
    support: Literal["full", "top-k"]
    k: int | None
    lower_bound: bool
    differs: tuple[str, ...]
    panel: str
    panel_sha256: str
    windows: tuple[Scored, ...]
    floor: Floor | None
    summary: Summary
    above_floor: bool | None
    tool: Tool


class Receipt(Payload):
    """A sealed payload."""

    seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")


@dataclass(frozen=True)
class Compared:
    """What a receipt is built from. names, strata, tokens: of the windows, in the order of `positions`."""

    reference: Side
    candidate: Side
    support: Literal["full", "top-k"]
    k: int | None
    panel: str
    panel_sha256: str
    names: tuple[str, ...]
    strata: tuple[str, ...]
    tokens_sha256: tuple[str, ...]
    positions: tuple[Positions, ...]
    differs: tuple[str, ...] = ()
    floor: Floor | None = None


def floor(first: str, second: str, windows: Sequence[Positions]) -> Floor:
    """The noise floor from two captures (their seals) of the same reference."""
    sums, counts = tuple(sum(w.kld) for w in windows), tuple(len(w.kld) for w in windows)
    return Floor(first=first, second=second, sums=sums, positions=counts, **_floor_figures(sums, counts))


def _floor_figures(sums: Sequence[int], counts: Sequence[int]) -> dict[str, float]:
    means = [part / count for part, count in zip(sums, counts, strict=True)]
    return {"mean": nats(sum(sums) / sum(counts)), "max_window_mean": nats(max(means))}


def build(compared: Compared) -> Receipt:
    """The sealed receipt of a comparison made now."""
    rows = zip(compared.names, compared.strata, compared.tokens_sha256, compared.positions, strict=True)
    summary = summarize(compared.names, compared.strata, compared.positions)
    payload = Payload(
        id=secrets.token_hex(6),
        created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reference=compared.reference,
        candidate=compared.candidate,
        support=compared.support,
        k=compared.k,
        lower_bound=compared.support == "top-k",
        differs=compared.differs,
        panel=compared.panel,
        panel_sha256=compared.panel_sha256,
        windows=tuple(Scored(name=n, stratum=s, tokens_sha256=t, **packed(p)) for n, s, t, p in rows),
        floor=compared.floor,
        summary=summary,
        above_floor=_above(summary, compared.floor),
        tool=tool(),
    )
    plain = without_private(payload.model_dump(mode="json"))
    return Receipt.model_validate_json(json.dumps({**plain, "seal": seal_of(plain)}))


def _above(summary: Summary, against: Floor | None) -> bool | None:
    return None if against is None else summary.interval[0] > against.mean


def derived(receipt: Payload) -> dict[str, Any]:
    """Every derived field, recomputed from the positions."""
    positions = [window.positions() for window in receipt.windows]
    summary = summarize([w.name for w in receipt.windows], [w.stratum for w in receipt.windows], positions)
    plain: dict[str, Any] = {
        "summary": summary.model_dump(mode="json"),
        "lower_bound": receipt.support == "top-k",
        "above_floor": _above(summary, receipt.floor),
        "floor": None,
    }
    if receipt.floor:
        plain["floor"] = {**receipt.floor.model_dump(mode="json"), **_floor_figures(receipt.floor.sums, receipt.floor.positions)}
    return plain


def write(receipt: Receipt, path: Path) -> None:
    """Write atomically. Raises BenchError."""
    sealed.write(receipt.model_dump(mode="json"), path)


def is_kld(path: Path) -> bool:
    """Whether the file says of itself that it is a KLD receipt."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(plain, dict) and plain.get("receipt") == SCHEMA


def check(path: Path) -> Receipt:
    """The receipt at `path` if schema, seal and every figure are right. Raises InvalidMeasurement naming the first that is off."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        receipt = Receipt.model_validate_json(json.dumps(plain))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidMeasurement(f"{shown(path)}: field {where or 'receipt'}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    if receipt.seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: field seal: does not fit the contents; the file was changed after it was sealed")
    recomputed = derived(receipt)
    found = first_difference({key: plain[key] for key in recomputed}, recomputed)
    if found:
        raise InvalidMeasurement(f"{shown(path)}: field {found[0]}: says {found[1]!r}, the positions give {found[2]!r}")
    return receipt
