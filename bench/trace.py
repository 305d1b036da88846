"""What happened during one request, as facts. Nothing here is derived; `measure.py` derives."""

from __future__ import annotations

import operator
from typing import Literal

import pydantic

# One letter per chunk: r role only, k reasoning ("thinking"), c content, t tool call, f finish reason only, u usage only, e empty
Kind = Literal["r", "k", "c", "t", "f", "u", "e"]
TOKEN_KINDS = frozenset("kct")


class Fact(pydantic.BaseModel):
    """Base of everything that is stored: immutable, unknown keys refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class Usage(Fact):
    """Token counts as the server stated them at the end of a response; None: not stated."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Trace(Fact):
    """The stream of one request, in columns of equal length, one entry per chunk (SSE event) with data.

    t_s: seconds from just before the request was sent to the chunk's arrival (monotonic clock, rounded to microseconds).
    kinds: one letter per chunk, see Kind.
    tokens: cumulative completion tokens as the chunk itself stated them (usage, timings or token ids); None: it did not.
    """

    t_s: tuple[float, ...] = ()
    kinds: str = ""
    tokens: tuple[int | None, ...] = ()
    chunk_counts: Literal["usage", "timings", "token_ids"] | None = None
    t_end_s: float
    usage: Usage | None = None
    finish_reason: str | None = None
    text: str = ""
    reasoning: str = ""
    error: str | None = None

    def token_chunks(self) -> list[int]:
        """Indices of the chunks that hold a token: text, reasoning or a tool call, or a stated count that rose.

        The text may come later than the token: half a multi-byte character, or the end-of-text token, shows only in the count.
        """
        found, known = [], 0
        for at, (kind, count) in enumerate(zip(self.kinds, self.tokens, strict=True)):
            if kind in TOKEN_KINDS or (count or 0) > known:
                found.append(at)
            known = max(known, count or 0)
        return found

    @pydantic.model_validator(mode="after")
    def _columns_match(self) -> Trace:
        if not len(self.t_s) == len(self.kinds) == len(self.tokens):
            raise ValueError("t_s, kinds and tokens differ in length")
        if not all(map(operator.le, self.t_s, self.t_s[1:])):
            raise ValueError("t_s goes backwards")
        return self
