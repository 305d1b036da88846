"""The payload of one SSE event of a chat completion -> one row of the columns. Pure, and lean: it runs once per token."""

from __future__ import annotations

import json
import re
from typing import Any

import pydantic_core

from bench.columns import Columns, Malformed, kind_of
from bench.request import Listener
from bench.template import Template, learned
from bench.trace import Usage

_KNOWN: dict[bytes, Template] = {}  # the shapes that servers of this process have sent, by their pattern
_MOST_KNOWN = 16
_MOST_TRIES = 8  # of one stream to learn its shape: where all differ, learning only costs


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
        self._ids = 0
        self._usage: dict[str, Any] | None = None  # the last one stated, as it came
        self._alike: re.Match[bytes] | None = None  # a later one, in a chunk that was read by its template
        self._usual: Template | None = None  # what its last chunk looked like
        self._tries = 0

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
            self._usage, self._alike = _typed(usage, dict, "usage"), None
        choice = next((_typed(choice, dict, "choice") for choice in choices if _index(choice) == 0), None)
        if choice is None:
            columns.add(at_ns, "u" if usage else "e", columns.count(None, None, None))
        else:
            self._choice(at_ns, choice, usage, document.get("timings"))
            self._learn(payload, document)

    def read_alike(self, at_ns: int, data: bytes) -> int:
        """Record the whole HTTP chunks at the start of `data`, each one event, that look like an earlier chunk; the same as `read` of
        each. Returns where the first other byte is. Only for a reader without listener.
        """
        done = 0
        for template in (self._usual, *_KNOWN.values()) if self._usual else _KNOWN.values():
            while found := template.pattern.match(data, done):
                if int(found[1], 16) != found.end() - found.end(1) - 4 or not self._plain(at_ns, template, found):
                    return done
                done = found.end()
            if done == len(data):
                self._usual = template
                break
        return done

    def _plain(self, at_ns: int, template: Template, found: re.Match[bytes]) -> bool:
        """Record one chunk by what its template says; False: it has to be read in full, for its text is empty or no UTF-8."""
        raw = found[template.text]
        try:
            text = raw.decode() if b"\\" not in raw else json.loads(f'"{raw.decode()}"')
        except ValueError:
            return False
        if not text:
            return False
        columns, ids = self.columns, None
        if template.states_usage:
            self._alike = found
        if template.token_ids:
            self._ids = ids = self._ids + found[template.token_ids].count(b",") + 1
        usage = int(found[template.usage]) if template.usage else None
        predicted = int(found[template.timings]) if template.timings else None
        columns.at_ns.append(at_ns)
        columns.kinds.append(template.kind)
        columns.tokens.append(columns.count(usage, predicted, ids))
        (columns.text if template.kind == "c" else columns.reasoning).append(text)
        return True

    def _learn(self, payload: bytes, document: dict[str, Any]) -> None:
        if self._listen or self._tries >= _MOST_TRIES or self.columns.kinds[-1] not in "ck":
            return
        self._tries += 1
        if shape := learned(payload, document):
            while len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.pop(next(iter(_KNOWN)))
            _KNOWN.setdefault(*shape)

    def finish(self) -> None:
        """The stream has ended: keep the last usage. Raises Malformed."""
        if self._alike:
            found, self._alike = self._alike, None
            self._usage = parse(found[0][found.end(1) - found.start() + 8 : -4])["usage"]
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
            self._ids += len(_typed(ids, list, "token_ids"))
        predicted = _natural(_typed(timings, dict, "timings").get("predicted_n")) if timings else None
        tokens = columns.count(_natural(usage.get("completion_tokens")) if usage else None, predicted, self._ids if ids else None)
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
