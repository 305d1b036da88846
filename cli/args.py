"""Parsing of command-line values. invoke hands every value over as text, so that a bad one becomes our one-line error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from cli.main import BadArgument


def integer(flag: str, text: str | None, *, low: int, high: int | None = None) -> int | None:
    """The whole number in `text`, or None when the flag was not given. Raises BadArgument outside [low, high]."""
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise BadArgument(f"--{flag} takes a whole number, not '{text}'") from None
    if value < low or (high is not None and value > high):
        limits = f"{low} or more" if high is None else f"{low} to {high}"
        raise BadArgument(f"--{flag} is {value}; allowed: {limits}")
    return value


def number(flag: str, text: str | None, *, low: float) -> float | None:
    """The decimal number in `text`, or None when the flag was not given. Raises BadArgument below `low` or when not finite."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise BadArgument(f"--{flag} takes a number, not '{text}'") from None
    if not low <= value < float("inf"):
        raise BadArgument(f"--{flag} is {text}; allowed: {low:g} or more")
    return value


def integers(flag: str, text: str | None, *, low: int) -> tuple[int, ...] | None:
    """The comma-separated whole numbers in `text`, or None when the flag was not given."""
    if text is None:
        return None
    parsed = [integer(flag, part.strip(), low=low) for part in text.split(",")]
    return tuple(value for value in parsed if value is not None)


def choice(flag: str, text: str | None, allowed: Sequence[str]) -> str | None:
    """`text` if it is one of `allowed`, None when the flag was not given; else BadArgument with the nearest allowed word."""
    if text is None or text in allowed:
        return text
    near = difflib.get_close_matches(text, allowed, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise BadArgument(f"--{flag} is '{text}'; allowed: {', '.join(allowed)}{hint}")
