"""Receipts of the ablation lab: one sealed JSON file per point, schema `spark-lab/ablation/v1`.

It holds the raw facts (sums per window, outcome per prompt, figures per edited tensor) and the summary that follows from them; `check`
recomputes the summary. The seal is that of bench/receipt.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic

from ablit import stats
from ablit.served import facts as served_facts
from ablit.served.facts import Served
from ablit.spec import EditSpec, Value
from bench.check import first_difference
from bench.errors import BenchError, InvalidMeasurement
from bench.receipt import seal_of, shown
from bench.sealed import document

SCHEMA: Literal["spark-lab/ablation/v1"] = "spark-lab/ablation/v1"
SHA256 = pydantic.Field(pattern=r"^[0-9a-f]{64}$")
# how far alpha may be missed by the tensor's rounding, relative to the component that was there
RATIO_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}


class Model(Value):
    """What was edited. sha256 of its weight file; of a served model of repository, revision, config.json, and the weight files' names and
    sizes. `dtype` in which weights are stored and layers computed (in process the head is always fp32)."""

    name: str
    sha256: str = SHA256
    layers: int
    hidden: int
    dtype: Literal["float32", "bfloat16", "float16"]


class LayerEdit(Value):
    """One edited tensor. `ratio`: signed ratio (r^T W').(r^T W) / |r^T W|^2, which is 1 - alpha; `change`: |W' - W| / |W|."""

    layer: int
    target: str
    alpha: float
    ratio: float
    change: float
    before_sha256: str = SHA256
    after_sha256: str = SHA256


class Window(Value):
    """Sums over the positions of one window, against the unedited model: nats, total variation, positions with the same first choice."""

    name: str
    positions: int = pydantic.Field(gt=0)
    kld: float
    tv: float
    agree: int
    kld_max: float


class Panel(Value):
    """The text panel. `texts_sha256`: of the token windows. Quantiles are over all positions; they do not follow from `windows`.

    form: statistics and full are over the whole vocabulary; top-k is over the most likely tokens and the rest, a lower bound.
    """

    form: Literal["statistics", "full", "top-k"]
    texts: str
    texts_sha256: str = SHA256
    windows: tuple[Window, ...] = pydantic.Field(min_length=1)
    median: float
    p99: float
    p999: float


class Side(Value):
    """Held-out prompts of one side, greedy answers of `reply_tokens` at most, one character a prompt.

    stock, edited: 1 where the classifier says yes. soundness: s, r, e, d for sound, repeating, empty, degenerate (edited model).
    first_kld: KLD of the first answer token, nats, of each prompt; none where the server gave no log-probabilities.
    answers_sha256: of all edited answers; samples: the first few.
    """

    file: str
    file_sha256: str = SHA256
    classifier: str
    reply_tokens: int
    stock: str = pydantic.Field(pattern=r"^[01]+$")
    edited: str = pydantic.Field(pattern=r"^[01]+$")
    stock_soundness: str = pydantic.Field(pattern=r"^[sred]+$")
    soundness: str = pydantic.Field(pattern=r"^[sred]+$")
    first_kld: tuple[float, ...]
    answers_sha256: str = SHA256
    samples: tuple[str, ...]


class SideSummary(Value):
    """Rates with Wilson 95 % intervals; `lost`, `gained`, `p`: exact McNemar test of edited against stock."""

    stock_rate: float
    stock_interval: tuple[float, float]
    rate: float
    interval: tuple[float, float]
    lost: int
    gained: int
    p: float
    unsound: int
    stock_unsound: int
    first_token_kld: float | None


class Summary(Value):
    """`kld` in nats per position with a window bootstrap 95 % interval; `acceptance`: mean 1 - TV, what sampled speculation with the
    unedited model as drafter would accept; `agreement`: the same for greedy decoding."""

    kld: float
    kld_interval: tuple[float, float] | None
    kld_max: float
    acceptance: float
    agreement: float
    sides: tuple[SideSummary, ...]


class Payload(Value):
    """A receipt without its seal. control: twin (unedited, in the same run), random (equal norm), or none of these.

    protocol served: measured over HTTP on a kit; `served` says how, and `edits` is empty, as ranks report ranges (served.edits).
    """

    receipt: Literal["spark-lab/ablation/v1"] = SCHEMA
    id: str
    created_utc: str
    tool: dict[str, str | bool | None]
    model: Model
    direction: dict[str, str]
    spec: EditSpec
    control: Literal["twin", "random"] | None
    edits: tuple[LayerEdit, ...]
    panel: Panel
    behaviour: tuple[Side, ...]
    cpu_s: dict[str, float]
    summary: Summary
    protocol: Literal["in-process", "served"] = "in-process"
    served: Served | None = None


class Receipt(Payload):
    """A sealed payload."""

    seal: str = pydantic.Field(pattern=r"^sha256:[0-9a-f]{64}$")


def summarize(panel: Panel, behaviour: Sequence[Side]) -> Summary:
    """The derived part of a receipt."""
    positions = sum(window.positions for window in panel.windows)
    means = [window.kld / window.positions for window in panel.windows]
    return Summary(
        kld=sum(window.kld for window in panel.windows) / positions,
        kld_interval=stats.clustered(means),
        kld_max=max(window.kld_max for window in panel.windows),
        acceptance=1 - sum(window.tv for window in panel.windows) / positions,
        agreement=sum(window.agree for window in panel.windows) / positions,
        sides=tuple(_side(side) for side in behaviour),
    )


def _side(side: Side) -> SideSummary:
    stock, edited = [c == "1" for c in side.stock], [c == "1" for c in side.edited]
    lost, gained, p = stats.mcnemar(stock, edited)
    count = len(edited)
    return SideSummary(
        stock_rate=sum(stock) / count,
        stock_interval=stats.wilson(sum(stock), count),
        rate=sum(edited) / count,
        interval=stats.wilson(sum(edited), count),
        lost=lost,
        gained=gained,
        p=p,
        unsound=sum(c != "s" for c in side.soundness),
        stock_unsound=sum(c != "s" for c in side.stock_soundness),
        first_token_kld=sum(side.first_kld) / count if side.first_kld else None,
    )


def seal(payload: Payload) -> Receipt:
    plain = payload.model_dump(mode="json")
    return Receipt.model_validate({**plain, "seal": seal_of(plain)})


def write(receipt: Receipt, path: Path) -> None:
    """Atomically: a full disk leaves what was there. Raises BenchError."""
    replace(path, document(receipt.model_dump(mode="json")))


def replace(path: Path, text: str) -> None:
    """The file with that text in place of what was there, or what was there. Raises BenchError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BenchError(
            f"cannot write {shown(path)}: {error.strerror}\ntry: free disk space and run it again: finished points are kept"
        ) from error


def check(path: Path) -> Receipt:
    """The receipt at `path` if schema, seal, summary and every tensor's signed ratio are right. Raises InvalidMeasurement."""
    receipt = read(path)
    recomputed = summarize(receipt.panel, receipt.behaviour)
    where = first_difference(receipt.summary.model_dump(mode="json"), recomputed.model_dump(mode="json"), "summary")
    if where:
        raise InvalidMeasurement(f"{shown(path)}: field {where[0]}: says {where[1]!r}, the raw facts give {where[2]!r}")
    for problem in problems(receipt):
        raise InvalidMeasurement(f"{shown(path)}: {problem}")
    return receipt


def read(path: Path) -> Receipt:
    """Schema and seal only. Raises InvalidMeasurement."""
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
        receipt = Receipt.model_validate_json(json.dumps(plain))
    except (OSError, ValueError) as error:
        first = error.errors()[0] if isinstance(error, pydantic.ValidationError) else None
        what = f"field {'.'.join(map(str, first['loc']))}: {first['msg']}" if first else f"not readable as JSON: {error}"
        raise InvalidMeasurement(f"{shown(path)}: {what}") from error
    if receipt.seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: field seal: does not fit the contents; the file was changed after it was sealed")
    return receipt


def problems(payload: Payload) -> list[str]:
    """What the facts contradict: an edit that is not the one asked for, a null edit that changed anything, sides of unequal length."""
    found = [f"{side.file}: not one outcome for each prompt" for side in payload.behaviour if len(_counts(side)) > 1]
    if (payload.protocol == "served") != (payload.served is not None) or (payload.panel.form == "top-k") != (payload.served is not None):
        return [*found, "a point is served when it says how, and then its panel has the form top-k"]
    if payload.served:
        source = payload.direction.get("sha256")
        return [*found, *served_facts.problems(payload.served, payload.spec, payload.model.layers, source)]
    found += [wrong for edit in payload.edits if (wrong := _missed(edit, RATIO_TOLERANCE[payload.model.dtype]))]
    if {(e.layer, e.target) for e in payload.edits} != {(n, t) for n in payload.spec.layers for t in payload.spec.targets}:
        found.append("the edited tensors are not those of the specification")
    if payload.spec.is_null and any(window.kld or window.kld_max or window.tv for window in payload.panel.windows):
        found.append("the null edit has a KLD that is not 0")
    return found


def _missed(edit: LayerEdit, near: float) -> str | None:
    wanted = 1 - edit.alpha
    if abs(edit.ratio - wanted) <= near * max(1.0, edit.alpha):
        return None
    return f"layer {edit.layer} {edit.target}: signed ratio {edit.ratio:.5f}, alpha {edit.alpha:g} gives {wanted:.5f}"


def _counts(side: Side) -> set[int]:
    counted = [side.stock, side.edited, side.soundness, side.stock_soundness, *([side.first_kld] if side.first_kld else [])]
    return {len(each) for each in counted}
