"""Two capture files, and perhaps a third for the noise floor, into what a receipt is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BadRequest
from bench.kld import capture, distance, receipt
from bench.kld.capture import Capture


@dataclass(frozen=True)
class Asked:
    """The files; top_k: reduce all to the N most likely tokens. differs: rules of distance.refuse_unlike that do not hold by intent."""

    reference: Path
    candidate: Path
    floor: Path | None = None
    top_k: int | None = None
    differs: tuple[str, ...] = ()


def compare(asked: Asked, say: Callable[[str], None]) -> receipt.Compared:
    """Raises BadRequest or InvalidMeasurement for captures that are missing, damaged or do not fit together."""
    reference, candidate = _read(asked.reference, asked.top_k), _read(asked.candidate, asked.top_k)
    distance.refuse_unlike(reference, candidate, asked.differs)
    against = _floor(asked, reference, say) if asked.floor else None
    meta = reference.meta
    return receipt.Compared(
        reference=_side(reference),
        candidate=_side(candidate),
        support=meta.support,
        k=meta.k,
        panel=meta.panel,
        panel_sha256=meta.panel_sha256,
        names=tuple(window.name for window in meta.windows),
        strata=tuple(window.stratum for window in meta.windows),
        tokens_sha256=tuple(window.tokens_sha256 for window in meta.windows),
        positions=distance.positions(reference, candidate, lambda window: _progress(say, "candidate", window, len(meta.windows))),
        differs=asked.differs,
        floor=against,
    )


def _progress(say: Callable[[str], None], what: str, window: int, count: int) -> None:
    if (window + 1) % 10 == 0 or window + 1 == count:
        say(f"{what}: window {window + 1} of {count}")


def _read(path: Path, top_k: int | None) -> Capture:
    found = capture.read(path)
    return capture.as_top_k(found, top_k) if top_k else found


def _floor(asked: Asked, reference: Capture, say: Callable[[str], None]) -> receipt.Floor:
    second = _read(asked.floor or Path(), asked.top_k)
    distance.refuse_unlike(reference, second, asked.differs)
    if (second.meta.model, second.meta.edit) != (reference.meta.model, reference.meta.edit):
        was = f"{second.meta.model}, {second.meta.edit}; the reference is {reference.meta.model}, {reference.meta.edit}"
        raise BadRequest(f"the noise floor is the reference captured twice; --floor is of {was}")
    count = len(reference.meta.windows)
    found = distance.positions(reference, second, lambda window: _progress(say, "noise floor", window, count))
    return receipt.floor(reference.seal, second.seal, found)


def _side(found: Capture) -> receipt.Side:
    meta = found.meta
    return receipt.Side(
        model=meta.model, edit=meta.edit, weights_sha256=meta.weights_sha256, dtype=meta.dtype, source=meta.source, capture=found.seal
    )
