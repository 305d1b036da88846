"""The payload of one SSE event of a chat completion -> one row of the columns. Pure, and lean: it runs once per token."""

from __future__ import annotations

import json
from typing import Any

import pydantic_core

from bench.alike import Alike
from bench.columns import Columns, Malformed, kind_of
from bench.request import Listener
from bench.trace import Usage


class ServerFault(Exception):
    """The server sent an error in place of a chunk."""


def parse(payload: bytes) -> dict[str, Any]:
    """The JSON object in `payload`. Raises ValueError (UnicodeDecodeError, json's or Malformed)."""
    try:
        document = pydantic_core.from_json(payload)
    except ValueError:
        # The fast parser refuses what JSON allows (an escaped half of a character): the standard library decides.
        document = json.loads(payload.decode())
    if type(document) is not dict:
        raise Malformed(f"an event that is no JSON object: {payload[:60]!r}")
    return document


class Reader:
    """Reads the chunks of one stream into columns."""

    def __init__(self, columns: Columns, listen: Listener | None) -> None:
        self.columns = columns
        self._listen = listen
        self._usage: dict[str, Any] | None = None  # the last one stated, as it came
        self.alike = Alike(columns)

    def read(self, at_ns: int, payload: bytes) -> None:
        """Record one event that was read from the socket at `at_ns`. Raises ServerFault or ValueError."""
        document = parse(payload)
        if error := document.get("error"):
            raise ServerFault(_message(error))
        choices = document.get("choices")
        if type(choices) is not list:
            raise Malformed(f"an event without choices: {payload[:200].decode(errors='replace')}")
        columns = self.columns
        usage = document.get("usage")
        if usage:
            self._usage, self.alike.last_usage = _typed(usage, dict, "usage"), None
        choice = next((_typed(choice, dict, "choice") for choice in choices if _index(choice) == 0), None)
        if choice is None:
            columns.add(at_ns, "u" if usage else "e", columns.count(None, None, None))
        else:
            self._choice(at_ns, choice, usage, document.get("timings"))
            if not self._listen and columns.kinds[-1] in "ck":
                self.alike.learn(payload, document)

    def finish(self) -> None:
        """The stream has ended: keep the last usage. Raises Malformed."""
        if later := self.alike.last_usage:
            self._usage = parse(later)["usage"]
        self.columns.usage = _usage(self._usage) if self._usage else None

    def _choice(self, at_ns: int, choice: dict[str, Any], usage: dict[str, Any] | None, timings: Any) -> None:
        columns = self.columns
        delta = _typed(choice.get("delta"), dict, "delta")
        content = _text(delta.get("content"))
        # vLLM says `reasoning`, others `reasoning_content`
        thought = _text(delta.get("reasoning") or delta.get("reasoning_content"))
        finish = _text(choice.get("finish_reason"))
        kind = kind_of(content, thought, bool(delta.get("tool_calls")), bool(finish), bool(delta.get("role")))
        ids = choice.get("token_ids")
        if ids:
            columns.ids += len(_typed(ids, list, "token_ids"))
        predicted = _natural(_typed(timings, dict, "timings").get("predicted_n")) if timings else None
        tokens = columns.count(_natural(usage.get("completion_tokens")) if usage else None, predicted, columns.ids if ids else None)
        columns.add(at_ns, kind, tokens)
        if finish:
            columns.finish_reason = finish
        if content:
            columns.text.append(content)
        if thought:
            columns.reasoning.append(thought)
        if self._listen and (thought or content):
            self._listen(kind, thought + content)


def _index(choice: Any) -> int:
    index = _typed(choice, dict, "choice").get("index")
    if type(index) is not int:
        raise Malformed(f"a choice without index: {str(choice)[:60]}")
    return index


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise Malformed(f"{name} is no {'object' if kind is dict else kind.__name__}: {str(value)[:60]}")
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(_typed(value, str, "a text"))


def _natural(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise Malformed(f"a count that is no natural number: {str(value)[:60]}")
    return value


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=_natural(usage.get("prompt_tokens")),
        completion_tokens=_natural(usage.get("completion_tokens")),
        cached_tokens=_natural(_typed(prompt, dict, "prompt_tokens_details").get("cached_tokens")),
        reasoning_tokens=_natural(_typed(completion, dict, "completion_tokens_details").get("reasoning_tokens")),
    )


def _message(error: Any) -> str:
    """The message of an OpenAI-shaped error, else the error itself."""
    message = error.get("message") if type(error) is dict else None
    return str(message or error)[:300]
