"""One model's distributions at every position of the windows, in one sealed file for both ways of capturing.

`spark-lab/kld-capture/v1`: an .npz whose member `meta` is JSON (Meta and its seal) and which holds, by `support`,
  full    hidden [windows, positions, d] fp32, the states after the last norm. The head (weight, and bias if any) lies beside the file
          as head-<sha256>.npz, once for all captures of the same head: logits = cap * tanh(z / cap), z = scale * (h W^T + b).
  top-k   ids [windows, positions, k] int32 and logprobs fp32, the k most likely tokens, most likely first.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kld.windows import Panel, Window
from bench.receipt import canonical, seal_of, shown
from bench.trace import Fact

SCHEMA: Literal["spark-lab/kld-capture/v1"] = "spark-lab/kld-capture/v1"
_ROWS = 64
Floats = NDArray[np.float32]
Array = NDArray[Any]


class Cut(Fact):
    """One window as this model's tokenizer cut it."""

    name: str
    stratum: str
    positions: int
    tokens_sha256: str


class HeadFact(Fact):
    """The head that a full capture needs beside its hidden states."""

    sha256: str
    scale: float
    cap: float | None


class Meta(Fact):
    """What was captured. edit: what was done to the weights, `stock` for nothing. dtype: of the trunk, None where unknown."""

    capture: Literal["spark-lab/kld-capture/v1"] = SCHEMA
    support: Literal["full", "top-k"]
    k: int | None
    source: Literal["in-process", "served"]
    model: str
    weights_sha256: str | None
    edit: str
    dtype: str | None
    vocabulary: int | None
    tokenizer_sha256: str | None
    head: HeadFact | None
    panel: str
    panel_sha256: str
    windows: tuple[Cut, ...]
    created_utc: str
    arrays: dict[str, str] = pydantic.Field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """A sealed capture as read or just made. head: weight and perhaps bias, for full support."""

    meta: Meta
    arrays: Mapping[str, Array]
    head: Mapping[str, Array]
    seal: str


def cuts(windows: Sequence[Window]) -> tuple[Cut, ...]:
    return tuple(Cut(name=w.name, stratum=w.stratum, positions=w.positions, tokens_sha256=w.sha256) for w in windows)


def panel_fields(panel: Panel, windows: Sequence[Window]) -> dict[str, Any]:
    """The fields of Meta that say what was looked at."""
    return {"panel": panel.name, "panel_sha256": panel.sha256, "windows": cuts(windows)}


def array_sha256(arrays: Mapping[str, Array]) -> str:
    """Of names, types, shapes and little-endian contents."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = np.ascontiguousarray(arrays[name])
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def make(meta: Meta, arrays: Mapping[str, Array], head: Mapping[str, Array] | None = None) -> Capture:
    """A capture sealed now. Raises InvalidMeasurement for arrays that are not of the form above or not finite."""
    sealed = meta.model_copy(update={"arrays": {name: array_sha256({name: value}) for name, value in arrays.items()}})
    _check_form(sealed, arrays)
    return Capture(sealed, arrays, head or {}, seal_of(sealed.model_dump(mode="json")))


def _check_form(meta: Meta, arrays: Mapping[str, Array]) -> None:
    wanted = {"hidden"} if meta.support == "full" else {"ids", "logprobs"}
    shape = (len(meta.windows), meta.windows[0].positions if meta.windows else 0)
    if set(arrays) != wanted or any(value.shape[:2] != shape or value.ndim != 3 for value in arrays.values()):
        raise InvalidMeasurement(f"a {meta.support} capture of {shape[0]} windows of {shape[1]} positions has other arrays than {wanted}")
    if not all(np.isfinite(value).all() for value in arrays.values()):
        raise InvalidMeasurement(f"{meta.model}: NaN or infinite values at some position; nothing was captured")


def write(capture: Capture, path: Path) -> None:
    """Write atomically; a full capture's head goes beside it unless it is there. Raises BenchError, and leaves no half file."""
    text = canonical({**capture.meta.model_dump(mode="json"), "seal": capture.seal})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if capture.meta.head and not _head_path(path, capture.meta.head.sha256).exists():
            _save(_head_path(path, capture.meta.head.sha256), capture.head)
        _save(path, {**capture.arrays, "meta": np.frombuffer(text.encode(), dtype=np.uint8)})
    except OSError as error:
        raise BenchError(f"{shown(path)} cannot be written: {error}\ntry: free some space, or another --out") from error


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _head_path(path: Path, digest: str) -> Path:
    return path.with_name(f"head-{digest[:16]}.npz")


def read(path: Path) -> Capture:
    """The capture at `path`, seal and arrays verified. Raises BadRequest when there is none, InvalidMeasurement when it is not sound."""
    if not path.is_file():
        raise BadRequest(f"no such capture: {shown(path)}\ntry: invoke kld.capture --out {shown(path)}")
    arrays = _load(path)
    meta, seal = _meta(path, arrays.pop("meta", np.empty(0, np.uint8)))
    if {name: array_sha256({name: value}) for name, value in arrays.items()} != meta.arrays:
        raise InvalidMeasurement(f"{shown(path)}: the arrays are not those that were sealed")
    _check_form(meta, arrays)
    return Capture(meta, arrays, _read_head(path, meta.head) if meta.head else {}, seal)


def _load(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise InvalidMeasurement(f"{shown(path)} is no readable capture: {error}") from error


def _meta(path: Path, raw: Array) -> tuple[Meta, str]:
    try:
        plain = json.loads(raw.tobytes())
        seal = plain.pop("seal")
        meta = Meta.model_validate_json(json.dumps(plain))
    except (ValueError, KeyError, AttributeError, pydantic.ValidationError) as error:
        raise InvalidMeasurement(f"{shown(path)} is no capture of this form ({SCHEMA}): {str(error).splitlines()[0]}") from error
    if seal != seal_of(plain):
        raise InvalidMeasurement(f"{shown(path)}: the seal does not fit: the description was changed after it was sealed")
    return meta, str(seal)


def _read_head(path: Path, fact: HeadFact) -> dict[str, Array]:
    beside = _head_path(path, fact.sha256)
    if not beside.exists():
        raise BadRequest(f"{shown(path)} needs {beside.name} beside it\ntry: copy that file too")
    head = _load(beside)
    if array_sha256(head) != fact.sha256:
        raise InvalidMeasurement(f"{shown(beside)} is not the head that was captured")
    return head


def logits(capture: Capture, window: int) -> Floats:
    """fp32 [positions, vocabulary] of one window of a full capture."""
    fact = capture.meta.head
    if fact is None:
        raise ValueError("only a full capture has logits")
    z: Floats = capture.arrays["hidden"][window].astype(np.float32, copy=False) @ capture.head["weight"].T
    if "bias" in capture.head:
        z += capture.head["bias"]
    if fact.scale != 1:
        z *= np.float32(fact.scale)
    return z if fact.cap is None else (np.tanh(z / np.float32(fact.cap)) * np.float32(fact.cap)).astype(np.float32)


def log_softmax(values: Array) -> NDArray[np.float64]:
    """Over the last axis, in fp64."""
    wide = values.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def as_top_k(capture: Capture, k: int) -> Capture:
    """What a server with the same distributions would answer: the k most likely tokens of every position."""
    if capture.meta.support == "top-k":
        return _cropped(capture, k)
    ids, logprobs = [], []
    for window in range(len(capture.meta.windows)):
        rows = logits(capture, window)
        for start in range(0, len(rows), _ROWS):
            part = log_softmax(rows[start : start + _ROWS])
            best = np.argpartition(part, -k, axis=1)[:, -k:]
            order = np.take_along_axis(best, np.argsort(-np.take_along_axis(part, best, 1), axis=1, kind="stable"), 1)
            ids.append(order.astype(np.int32))
            logprobs.append(np.take_along_axis(part, order, 1).astype(np.float32))
    shape = (len(capture.meta.windows), -1, k)
    return _top_k(capture, k, np.concatenate(ids).reshape(shape), np.concatenate(logprobs).reshape(shape))


def _cropped(capture: Capture, k: int) -> Capture:
    have = capture.meta.k or 0
    if k > have:
        raise BadRequest(f"the capture of {capture.meta.model} holds the {have} most likely tokens, not {k}\ntry: --top-k {have}")
    return _top_k(capture, k, capture.arrays["ids"][..., :k], capture.arrays["logprobs"][..., :k])


def _top_k(capture: Capture, k: int, ids: Array, logprobs: Array) -> Capture:
    meta = capture.meta.model_copy(update={"support": "top-k", "k": k, "head": None})
    return make(meta, {"ids": ids, "logprobs": logprobs})
