"""Is a comparison receipt what it says? Schema, seal, and the whole comparison computed again from the receipts that it names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pydantic

from bench.campaign.runner import Campaign, opened
from bench.check import check as check_receipt
from bench.check import first_difference
from bench.compare import build
from bench.compare.model import Sealed
from bench.compare.verdict import Rules
from bench.errors import InvalidMeasurement
from bench.receipt import Receipt, seal_of, shown

RESULTS = Path(__file__).resolve().parents[2] / "results"
# What belongs to the act of comparing, not to what was compared.
_OWN = ("id", "created_utc", "tool", "seal")


def read(path: Path) -> Sealed:
    """Schema and seal. Raises InvalidMeasurement."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        found = Sealed.model_validate_json(json.dumps(plain))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InvalidMeasurement(f"{shown(path)}: field {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise InvalidMeasurement(f"{shown(path)}: not readable as JSON: {error}") from error
    if found.seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: field seal: does not fit the contents; the file was changed after it was sealed")
    return found


def check(path: Path, results: Path = RESULTS) -> Sealed:
    """The comparison at `path` if it follows from its receipts. They are looked for under `results`, in the file's own folder, and
    where that is called comparisons, in the folder around it.

    Raises InvalidMeasurement naming the receipt that is missing or the first field that is off.
    """
    found = read(path)
    home = path.resolve().parent
    places = [results, home.parent if home.name == "comparisons" else home]
    again = build.compare(_question(path, found, places)).model_dump(mode="json")
    stated = found.model_dump(mode="json")
    where = first_difference({k: v for k, v in stated.items() if k not in _OWN}, {k: v for k, v in again.items() if k not in _OWN})
    if where:
        field, said, computed = where
        raise InvalidMeasurement(f"{shown(path)}: field {field}: says {said!r}, its receipts give {computed!r}")
    return found


def _question(path: Path, found: Sealed, places: list[Path]) -> build.Question:
    if found.plan:
        campaign = _campaign(path, found, places)
        receipts = [check_receipt(file) for file in build.planned_receipts(campaign)]
        return build.of_plan(campaign, receipts, found.differs)
    a, b = (_receipts(path, arm.receipts, places) for arm in (found.a, found.b))
    rules = Rules(tuple(each.name for each in found.endpoints if each.primary), found.margin, found.alpha)
    return build.Question(a, b, rules, found.differs)


def _files(places: Iterable[Path], pattern: str) -> list[Path]:
    return list(dict.fromkeys(file.resolve() for place in places for file in sorted(place.rglob(pattern))))


def _campaign(path: Path, found: Sealed, places: list[Path]) -> Campaign:
    for file in _files(places, "plan.json"):
        if str(found.plan) in file.read_text(encoding="utf-8"):
            return opened(file)
    raise InvalidMeasurement(f"{shown(path)}: field plan: no plan with the seal {found.plan} is there\ntry: commit its campaign folder too")


def _receipts(path: Path, wanted: dict[str, str], places: list[Path]) -> list[Receipt]:
    """The receipts with these seals, in the order in which the comparison names them."""
    held: dict[str, Path] = {}
    for file in _files(places, "*.json"):
        text = file.read_text(encoding="utf-8")
        held |= {id: file for id, seal in wanted.items() if seal in text and f'"id": "{id}"' in text}
    missing = [id for id in wanted if id not in held]
    if missing:
        raise InvalidMeasurement(f"{shown(path)}: receipt {missing[0]} is not there: {len(missing)} of {len(wanted)} are missing")
    return [check_receipt(held[id]) for id in wanted]
