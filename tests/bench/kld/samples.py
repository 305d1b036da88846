"""Small captures with known distributions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.kld.capture import Capture, Cut, HeadFact, Meta, array_sha256, make

FIELDS: dict[str, Any] = {
    "source": "in-process",
    "model": "tiny",
    "weights_sha256": "a" * 64,
    "edit": "stock",
    "dtype": "float32",
    "vocabulary": 3,
    "tokenizer_sha256": "b" * 64,
    "panel": "panel-1",
    "panel_sha256": "c" * 64,
    "created_utc": "2026-11-30T00:00:00+00:00",
}


def cuts(windows: int, positions: int) -> tuple[Cut, ...]:
    return tuple(
        Cut(name=f"w-{i}", stratum="prose" if i % 2 else "code", positions=positions, tokens_sha256="d" * 64) for i in range(windows)
    )


def full(probabilities: Sequence[Sequence[Sequence[float]]], **fields: Any) -> Capture:
    """A full capture whose head is the identity, so that the hidden state is the logarithm of the given probabilities."""
    hidden = np.log(np.array(probabilities)).astype(np.float32)
    head = {"weight": np.eye(hidden.shape[2], dtype=np.float32)}
    fact = HeadFact(sha256=array_sha256(head), scale=1.0, cap=None)
    known = {"support": "full", "k": None, "head": fact, "windows": cuts(*hidden.shape[:2]), **FIELDS, **fields}
    return make(Meta(**known), {"hidden": hidden}, head)


def top_k(rows: Sequence[Sequence[Sequence[tuple[int, float]]]], **fields: Any) -> Capture:
    """A top-k capture from (token, probability) pairs, the likeliest first."""
    ids = np.array([[[token for token, _ in row] for row in window] for window in rows], dtype=np.int32)
    logs = np.array([[[math.log(p) for _, p in row] for row in window] for window in rows], dtype=np.float32)
    known = {**FIELDS, "support": "top-k", "k": ids.shape[2], "head": None, "windows": cuts(*ids.shape[:2]), "source": "served", **fields}
    return make(Meta(**known), {"ids": ids, "logprobs": logs})
