"""KL(reference || candidate) at every position of two captures that fit together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.errors import InvalidMeasurement
from bench.kld.capture import Array, Capture, log_softmax, logits
from bench.kld.positions import Positions, bucket_of, micronats

LOST_K = 20  # the reference's most likely token is lost when it is not among the candidate's so many most likely
_ROWS = 64
_LEAST = 1e-7  # smallest mass of the tail: the sum of k fp32 log-probabilities is not known better

Columns = tuple[NDArray[np.float64], Array, Array, Array]  # kld, agree, lost, confidence


def refuse_unlike(reference: Capture, candidate: Capture, differs: tuple[str, ...] = ()) -> None:
    """Raises InvalidMeasurement unless both saw the same windows through the same tokenizer, with the same dtype (unless `differs` names
    dtype) and the same support."""
    a, b = reference.meta, candidate.meta
    rules = (
        ("panel", (a.panel, a.panel_sha256), (b.panel, b.panel_sha256), "capture both with the same checkout"),
        ("tokenizer", a.tokenizer_sha256 or b.tokenizer_sha256, b.tokenizer_sha256 or a.tokenizer_sha256, "compare models of one family"),
        ("vocabulary", a.vocabulary or b.vocabulary, b.vocabulary or a.vocabulary, "compare models of one family"),
        ("windows", a.windows, b.windows, "the same tokenizer, --trial and window length for both"),
        ("support", (a.support, a.k), (b.support, b.k), "--top-k N reduces both to the N most likely tokens and the rest"),
        ("dtype", a.dtype or b.dtype, b.dtype or a.dtype, "--differs dtype, if the difference of dtype is what you ask about"),
    )
    for name, left, right, hint in rules:
        if left != right and name not in differs:
            shown = "" if name == "windows" else f" ({left} and {right})"
            raise InvalidMeasurement(f"reference and candidate have not the same {name}{shown}\ntry: {hint}")


def positions(reference: Capture, candidate: Capture, say: Callable[[int], None] = lambda window: None) -> tuple[Positions, ...]:
    """Every window's positions; `say` hears of each finished window. Call refuse_unlike first."""
    each = _full if reference.meta.support == "full" else _top_k
    found = []
    for window in range(len(reference.meta.windows)):
        kld, agree, lost, confidence = each(reference, candidate, window)
        buckets = tuple(bucket_of(each) for each in confidence.tolist())
        found.append(Positions(micronats(kld.tolist()), tuple(agree.tolist()), tuple(lost.tolist()), buckets))
        say(window)
    return tuple(found)


def _full(reference: Capture, candidate: Capture, window: int) -> Columns:
    """Over the whole vocabulary: products with the heads in fp32, the rest in fp64."""
    p_logits, q_logits = logits(reference, window), logits(candidate, window)
    starts = range(0, len(p_logits), _ROWS)
    parts = [_full_rows(p_logits[start : start + _ROWS], q_logits[start : start + _ROWS]) for start in starts]
    kld, agree, lost, confidence = (np.concatenate([part[column] for part in parts]) for column in range(4))
    return kld, agree, lost, confidence


def _full_rows(p_logits: Array, q_logits: Array) -> Columns:
    log_p, log_q = log_softmax(p_logits), log_softmax(q_logits)
    top = log_p.argmax(1)[:, None]
    own = np.take_along_axis(log_q, top, 1)
    above = (log_q > own).sum(1)
    kld = (np.exp(log_p) * (log_p - log_q)).sum(1)
    return kld, above == 0, above >= LOST_K, np.exp(np.take_along_axis(log_p, top, 1)[:, 0])


def _top_k(reference: Capture, candidate: Capture, window: int) -> Columns:
    ids = (reference.arrays["ids"][window], candidate.arrays["ids"][window])
    logs = (reference.arrays["logprobs"][window].astype(np.float64), candidate.arrays["logprobs"][window].astype(np.float64))
    return top_k_rows(*ids, *logs)


def top_k_rows(p_ids: Array, q_ids: Array, log_p: NDArray[np.float64], log_q: NDArray[np.float64]) -> Columns:
    """From the k most likely tokens of both, [rows, k]. Tokens that both list stand for themselves and all others for one bucket: merging
    outcomes can only lower a KLD, so this is a lower bound of the KLD over the whole vocabulary."""
    same = p_ids[:, :, None] == q_ids[:, None, :]
    common = same.any(2)
    q_of = np.where(common, (same * log_q[:, None, :]).sum(2), 0.0)
    terms = np.where(common, np.exp(log_p) * (log_p - q_of), 0.0).sum(1)
    rest_p = np.maximum(1 - np.where(common, np.exp(log_p), 0).sum(1), _LEAST)
    rest_q = np.maximum(1 - np.where(common, np.exp(q_of), 0).sum(1), _LEAST)
    lost = ~same[:, 0, :LOST_K].any(1)
    return terms + rest_p * np.log(rest_p / rest_q), p_ids[:, 0] == q_ids[:, 0], lost, np.exp(log_p[:, 0])
