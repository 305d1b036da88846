"""Direction files without torch: read, checked against a served model, and the random ones that stand beside as controls."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.errors import BadRequest

KEY = "direction"  # as vllm_glm_exl3.ablation.direction has it
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_HEADER_LIMIT = 1 << 20
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Direction:
    """`content`: the bytes of its safetensors file, whose `sha256` every rank reports; `vectors` fp32 [hidden] or [layers, hidden].

    `id`: what an EditSpec calls it, the sha256 or random-SEED. `facts`: for receipts.
    """

    id: str
    content: bytes
    vectors: Floats
    facts: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def file(self) -> str:
        """What it is called on the nodes."""
        return f"{self.sha256[:16]}.safetensors"


def read(path: Path) -> Direction:
    """Raises BadRequest naming the file: not there, another format, no such tensor, zero or not finite."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"the direction file {path} cannot be read: {error.strerror}\ntry: invoke ablit.direction") from error
    try:
        vectors, metadata = parsed(content)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise BadRequest(f"{path} is no direction file: {error}\ntry: invoke ablit.direction") from error
    digest = hashlib.sha256(content).hexdigest()
    return Direction(digest, content, vectors, {"name": path.stem, **metadata, "sha256": digest})


def parsed(content: bytes) -> tuple[Floats, dict[str, str]]:
    """The tensor `direction` of a safetensors file, [1, hidden] as [hidden], and its metadata. Raises ValueError and others."""
    (length,) = struct.unpack("<Q", content[:8])
    if not 2 <= length <= min(_HEADER_LIMIT, len(content) - 8):
        raise ValueError("it does not begin as a safetensors file")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    if KEY not in header:
        raise ValueError(f'it has no tensor "{KEY}" but {", ".join(sorted(header)) or "nothing"}')
    vectors = _tensor(header[KEY], content[8 + length :])
    if vectors.ndim == 2 and len(vectors) == 1:
        vectors = vectors[0]
    if vectors.ndim not in (1, 2) or not vectors.size or not np.isfinite(vectors).all():
        raise ValueError("a direction is [hidden] or [layers, hidden], all of it finite")
    if vectors.ndim == 1 and not vectors.any():
        raise ValueError("the direction is zero")
    return vectors, {str(name): str(value) for name, value in metadata.items()}


def _tensor(entry: Mapping[str, Any], data: bytes) -> Floats:
    first, last = entry["data_offsets"]
    raw, kind = data[first:last], entry["dtype"]
    if kind == "BF16":
        found = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    elif kind in _TYPES:
        found = np.frombuffer(raw, _TYPES[kind]).astype(np.float32)
    else:
        raise ValueError(f"its type is {kind}")
    return np.asarray(found, np.float32).reshape(entry["shape"])


def written(vectors: Floats, metadata: Mapping[str, str]) -> bytes:
    """A safetensors file of fp32 vectors, the same bytes for the same values."""
    plain = np.ascontiguousarray(vectors, "<f4")
    notes = {**metadata, "hidden": str(plain.shape[-1])}
    header = {"__metadata__": notes, KEY: {"dtype": "F32", "shape": list(plain.shape), "data_offsets": [0, plain.nbytes]}}
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + plain.tobytes()


def random_like(real: Direction, seed: int) -> Direction:
    """A control: a Gaussian direction from `seed`, as long as the real one (the mean length when it has one a layer).

    Drawn by numpy, so not the values that the in-process lab draws with torch from the same seed.
    """
    hidden = real.vectors.shape[-1]
    drawn = np.random.default_rng(seed).standard_normal((hidden,))
    rows = real.vectors.reshape(-1, hidden).astype(np.float64)
    length = float(np.sqrt((rows * rows).sum(1)).mean())
    vectors = np.asarray(drawn / math.sqrt(float(drawn @ drawn)) * length, np.float32)
    name = f"random-{seed}"
    content = written(vectors, {"name": name})
    facts = {"name": name, "norm": f"{length:.6g}", "sha256": hashlib.sha256(content).hexdigest()}
    return Direction(name, content, vectors, facts)


def refuse_unfit(direction: Direction, hidden: int, layers: tuple[int, ...], model: str) -> None:
    """Raises BadRequest for a direction of another hidden size, or one that has no usable vector for one of the layers."""
    size = direction.vectors.shape[-1]
    if size != hidden:
        what = f"the direction has {size} values, {model} a hidden size of {hidden}: it is another model's"
        raise BadRequest(f"{what}\ntry: a direction that was read from this model")
    if direction.vectors.ndim == 1:
        return
    for layer in layers:
        if layer >= len(direction.vectors) or not direction.vectors[layer].any():
            raise BadRequest(f"the direction has no vector for layer {layer}; it has {len(direction.vectors)}\ntry: other --layers")


def unlike(direction: Direction, repository: str, revision: str | None) -> str | None:
    """A line where the direction file names another repository or revision than the served model's; None where it names none."""
    read, served = (direction.facts.get("model_repository"), direction.facts.get("model_revision")), (repository, revision)
    if read[0] and (read[0] != repository or (read[1] and revision and read[1] != revision)):
        texts = [f"{name} at {commit[:12]}" if commit else str(name) for name, commit in (read, served)]
        return f"the direction was read from {texts[0]}, the kit serves {texts[1]}: if that is another model, the edit means nothing"
    return None
