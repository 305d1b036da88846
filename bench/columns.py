"""A Trace under construction: grows by one chunk at a time. Both clients fill it; what a chunk means is read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bench.trace import Kind, Trace, Usage

CountedBy = Literal["usage", "timings", "token_ids"]
NO_FINISH = "the stream ended without a finish reason (cut off?)"


class Malformed(ValueError):
    """A chunk that no chat completion chunk looks like; the message says what is wrong with it."""


@dataclass
class Columns:
    """All times are CLOCK_MONOTONIC nanoseconds; `begin_ns` is just before the request was sent."""

    begin_ns: int
    at_ns: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    counted_by: CountedBy | None = None
    ids: int = 0  # token ids in the chunks so far
    usage: Usage | None = None
    finish_reason: str | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def count(self, usage: int | None, timings: int | None, token_ids: int | None) -> int | None:
        """The cumulative tokens that a chunk states, always by the same of its ways of stating them: the first that was seen."""
        if self.counted_by is None:
            if usage:
                self.counted_by = "usage"
            elif timings:
                self.counted_by = "timings"
            elif token_ids:
                self.counted_by = "token_ids"
        if self.counted_by == "usage":
            return usage
        return timings if self.counted_by == "timings" else token_ids if self.counted_by == "token_ids" else None

    def add(self, at_ns: int, kind: Kind, tokens: int | None) -> None:
        """One chunk that was read from the socket at `at_ns`."""
        self.at_ns.append(at_ns)
        self.kinds.append(kind)
        self.tokens.append(tokens)

    def trace(self, end_ns: int, error: str | None) -> Trace:
        """The finished trace. Without an error of its own, a stream that gave no finish reason counts as cut off."""
        if error is None and self.finish_reason is None:
            error = NO_FINISH
        begin = self.begin_ns - 500  # so that the division rounds instead of cutting
        return Trace(
            t_s=tuple([(at - begin) // 1000 / 1_000_000 for at in self.at_ns]),
            kinds="".join(self.kinds),
            tokens=tuple(self.tokens),
            chunk_counts=self.counted_by,
            t_end_s=(end_ns - begin) // 1000 / 1_000_000,
            usage=self.usage,
            finish_reason=self.finish_reason,
            text=whole("".join(self.text)),
            reasoning=whole("".join(self.reasoning)),
            error=None if error is None else whole(error),
        )


def kind_of(content: str, thought: str, tool_call: bool, finish: bool, role: bool) -> Kind:
    """The letter of a delta of choice 0 (see trace.Kind)."""
    return "c" if content else "k" if thought else "t" if tool_call else "f" if finish else "r" if role else "e"


def whole(text: str) -> str:
    """`text` without lone surrogates. Servers that escape JSON may cut a character's \\ud83d\\ude00 in two chunks: joined again here.
    What stays alone is shown as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
