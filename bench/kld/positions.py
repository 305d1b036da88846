"""What is known of every scored position, and the compact text form in which a receipt keeps it.

KLD is kept in whole micronats (1e-6 nats, a twentieth of the error that is allowed), so that every figure of a receipt follows from
integers and is recomputed to the last digit on any machine.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.errors import InvalidMeasurement

MICRO = 1_000_000
# Lower ends of the buckets of the reference's confidence (its largest probability).
BUCKETS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


@dataclass(frozen=True)
class Positions:
    """One window's positions, in order; all sequences have the same length.

    kld: micronats, may be slightly negative by rounding. agree: the same most likely token. lost: the reference's most likely token is
    not among the candidate's k most likely. bucket: index into BUCKETS of the reference's confidence.
    """

    kld: tuple[int, ...]
    agree: tuple[bool, ...]
    lost: tuple[bool, ...]
    bucket: tuple[int, ...]

    def __post_init__(self) -> None:
        if len({len(self.kld), len(self.agree), len(self.lost), len(self.bucket)}) != 1:
            raise ValueError("sequences of different length")


def micronats(nats: Iterable[float]) -> tuple[int, ...]:
    """Each KLD in whole micronats. Raises InvalidMeasurement for one that is not finite: a candidate that gives NaN or -inf."""
    values = []
    for value in nats:
        if not -1e3 < value < 1e3:
            raise InvalidMeasurement(f"a KLD of {value} nats: the candidate's or the reference's logits are not finite at some position")
        values.append(round(value * MICRO))
    return tuple(values)


def bucket_of(confidence: float) -> int:
    """The index of the last of BUCKETS that is not above `confidence`, which is rounded to six decimals."""
    return max(index for index, low in enumerate(BUCKETS) if round(confidence, 6) >= low)


def packed(positions: Positions) -> dict[str, str]:
    """As base64 of zlib: KLD as little-endian int32, the others as bytes (agree + 2 lost + 4 bucket)."""
    kld = array("i", positions.kld)
    flags = bytes(a + 2 * lo + 4 * b for a, lo, b in zip(positions.agree, positions.lost, positions.bucket, strict=True))
    return {"kld": _pack(_little(kld).tobytes()), "flags": _pack(flags)}


def unpacked(text: dict[str, str]) -> Positions:
    """The reverse of `packed`. Raises InvalidMeasurement for text that is not of that form."""
    try:
        kld = array("i", _unpack(text["kld"]))
        flags = _unpack(text["flags"])
        if len(kld) != len(flags) or any(each >> 2 >= len(BUCKETS) for each in flags):
            raise ValueError("lengths or buckets do not fit")
    except (KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise InvalidMeasurement(f"the positions of a window cannot be read: {error}") from error
    return Positions(
        tuple(_little(kld)), tuple(bool(f & 1) for f in flags), tuple(bool(f & 2) for f in flags), tuple(f >> 2 for f in flags)
    )


def _little(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _pack(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))


def total(windows: Sequence[Positions]) -> int:
    return sum(len(window.kld) for window in windows)
