"""Usual scripts in one call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from tests.fakes.render import compact
from tests.fakes.script import (
    Auto,
    Content,
    Done,
    Finish,
    Raw,
    Reasoning,
    Reply,
    Role,
    Step,
    TimingsUsage,
    Usage,
    Wait,
)

UsageMode: TypeAlias = Literal["final", "per-chunk", "none", "timings", "timings-per-chunk"]


@dataclass(frozen=True)
class More:
    """The rarer options. `cached`: cached_tokens shown by the final usage. `token_ids`: each chunk carries its ids
    (100, 101, ...). `reasoning`: None = content, else the name of the reasoning field that all text goes to."""

    cached: int | None = None
    token_ids: bool = False
    finish: str = "length"
    reasoning: Literal["reasoning", "reasoning_content"] | None = None
    word: str = "tok "


def uniform(
    tokens: int,
    per_chunk: int = 1,
    gap_s: float = 0.0,
    first_s: float = 0.0,
    usage: UsageMode = "final",
    more: More | None = None,
) -> list[Step]:
    """`tokens` tokens, `per_chunk` in each chunk (the last may hold fewer), the first after `first_s`, then each
    `gap_s`. Role comes first, then the chunks, Finish, the usage, Done, all without further wait."""
    sizes = [min(per_chunk, tokens - start) for start in range(0, tokens, per_chunk)]
    return bursts([(gap_s if i else first_s, size) for i, size in enumerate(sizes)], usage, more)


def bursts(timeline: Iterable[tuple[float, int]], usage: UsageMode = "final", more: More | None = None) -> list[Step]:
    """One chunk per (wait before it in s, tokens in it): speculative decoding, uneven gaps, a large first chunk."""
    more = more or More()
    steps: list[Step] = [Role(usage="auto" if usage == "per-chunk" else None)]
    sent = 0
    for wait_s, size in timeline:
        steps += [Wait(wait_s), _chunk(more.word * size, size, sent, (usage, more))]
        sent += size
    return steps + _tail(usage, more)


def smoothed(tokens: int, burst: int, step_s: float, usage: UsageMode = "final", more: More | None = None) -> list[Step]:
    """An engine that makes `burst` tokens each `step_s`, behind a playout buffer that lets them out one by one at an even pace:
    each token of a step waits its share of the next step, so the client sees single tokens and no bursts."""
    gap_s = step_s / burst
    return bursts([(step_s if i == 0 else gap_s, 1) for i in range(tokens)], usage, more)


def _chunk(text: str, size: int, sent: int, how: tuple[UsageMode, More]) -> Step:
    mode, more = how
    usage: Auto | None = "auto" if mode == "per-chunk" else None
    timings: Auto | None = "auto" if mode == "timings-per-chunk" else None
    ids = tuple(range(100 + sent, 100 + sent + size)) if more.token_ids else None
    if more.reasoning:
        return Reasoning(text, size, more.reasoning, usage=usage, timings=timings, token_ids=ids)
    return Content(text, size, usage=usage, timings=timings, token_ids=ids)


def _tail(mode: UsageMode, more: More) -> list[Step]:
    last: dict[UsageMode, list[Step]] = {
        "final": [Usage(cached=more.cached)],
        "per-chunk": [Usage(cached=more.cached)],
        "timings": [TimingsUsage()],
        "timings-per-chunk": [TimingsUsage()],
        "none": [],
    }
    return [Finish(more.finish, usage="auto" if mode == "per-chunk" else None), *last[mode], Done()]


def count_reply(upto: int, gap_s: float = 0.0, first_s: float = 0.0, usage: UsageMode = "final") -> Reply:
    """Counts 1..upto, a number and line end per chunk and token, finish "stop"."""
    how = (usage, More())
    steps: list[Step] = [Role(usage="auto" if usage == "per-chunk" else None)]
    for i in range(upto):
        steps += [Wait(gap_s if i else first_s), _chunk(f"{i + 1}\n", 1, i, how)]
    return Reply(steps + _tail(usage, More(finish="stop")))


def text_reply(text: str, tokens: int | None = None, when: str | None = None) -> Reply:
    """One content chunk at once (a probe, a warm-up); one token per word where `tokens` is None."""
    count = len(text.split()) if tokens is None else tokens
    return Reply([Role(), Content(text, count), Finish("stop"), Usage(), Done()], when=when)


def error_reply(status: int, message: str, kind: str = "server_error", code: str | int | None = None) -> Reply:
    """An OpenAI-shaped error."""
    return Reply(status=status, error=error_body(message, kind, code))


def error_body(message: str, kind: str, code: str | int | None) -> dict[str, dict[str, str | int | None]]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def server_error() -> Reply:
    return error_reply(500, "Internal server error", "InternalServerError", 500)


def model_not_found(model: str) -> Reply:
    return error_reply(404, f"The model `{model}` does not exist.", "NotFoundError", 404)


def rate_limited(retry_after_s: int) -> Reply:
    error = error_body("Rate limit reached", "rate_limit_error", "rate_limit_exceeded")
    return Reply(status=429, error=error, headers={"Retry-After": str(retry_after_s)})


def stream_error(message: str, line_end: str = "\n") -> Raw:
    """An error event in the middle of a stream, as vLLM sends it."""
    body = compact(error_body(message, "InternalServerError", 500))
    return Raw.of(f"data: {body}{line_end}{line_end}".encode())


def split_raw(data: bytes, borders: Sequence[int], gap_s: float = 0.0) -> list[Step]:
    """The bytes as Raw steps cut at these positions: inside an event or inside a character."""
    edges = [0, *borders, len(data)]
    parts: list[Step] = []
    for start, end in pairwise(edges):
        parts += [Wait(gap_s), Raw.of(data[start:end])]
    return parts
