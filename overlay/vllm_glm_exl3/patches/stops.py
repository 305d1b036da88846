"""A client's stop strings wait for the end of the thinking: vLLM also ends an answer where the model only thinks the words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_SUPPRESS_STOPS_IN_REASONING=0"
EXPECTED = {"__init__": "47bce96407888b22", "update": "ab88e88b47aeb0cc"}
OPEN, CLOSE = "<think>", "</think>"


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_SUPPRESS_STOPS_IN_REASONING", "1")


def apply(environment: Mapping[str, str]) -> None:
    from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, FastIncrementalDetokenizer

    guard.replace(FastIncrementalDetokenizer, "__init__", EXPECTED["__init__"], SWITCH, with_markers)
    guard.replace(BaseIncrementalDetokenizer, "update", EXPECTED["update"], SWITCH, with_thinking)


def with_markers(original: Callable[..., None]) -> Callable[..., None]:
    """Remember the marks' token ids, where the tokenizer has them and the request has stop strings, and whether thinking is open."""

    def __init__(self: Any, tokenizer: Any, request: Any) -> None:  # noqa: N807
        original(self, tokenizer, request)
        ids = [tokenizer._tokenizer.token_to_id(mark) for mark in (OPEN, CLOSE)] if self.stop else [None, None]
        self.think_ids = None if None in ids else tuple(ids)
        self.thinking = self.think_ids is not None and is_open(request.prompt_token_ids or (), *self.think_ids)

    return __init__


def is_open(ids: Sequence[int], opening: int, closing: int) -> bool:
    """The last of the two marks in `ids` is the opening one."""
    return next((token == opening for token in reversed(ids) if token in (opening, closing)), False)


def with_thinking(original: Callable[..., "str | None"]) -> Callable[..., "str | None"]:
    """Tokens up to the end of the thinking are taken with no stop strings, the others as ever."""

    def update(self: Any, new_token_ids: list[int], stop_terminated: bool) -> "str | None":
        marks = getattr(self, "think_ids", None)
        if marks is None or not new_token_ids:
            return original(self, new_token_ids, stop_terminated)
        count = thought(new_token_ids, self.thinking, *marks)
        self.thinking = is_open(new_token_ids, *marks) if set(marks) & set(new_token_ids) else self.thinking
        if count:
            rest = len(new_token_ids) - count
            without_stops(self, original, new_token_ids[:count], stop_terminated and not rest)
            new_token_ids = new_token_ids[count:]
        return original(self, new_token_ids, stop_terminated) if new_token_ids else None

    return update


def thought(ids: Sequence[int], thinking: bool, opening: int, closing: int) -> int:
    """How many of the first of `ids` belong to thinking, its closing mark included."""
    if closing in ids and (thinking or opening in ids):
        return len(ids) - list(reversed(ids)).index(closing)
    return len(ids) if thinking or opening in ids else 0


def without_stops(self: Any, original: Callable[..., "str | None"], ids: list[int], stop_terminated: bool) -> None:
    stops, self.stop = self.stop, []
    try:
        original(self, ids, stop_terminated)
    finally:
        self.stop = stops
