"""Greedy answers of a vLLM server to chat prompts, with what it says of the first answer token."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ablit.classify import Answer
from ablit.prompts import Prompts
from ablit.spec import Value
from bench.errors import BadRequest, BenchError

# A proxy from the environment must not stand between us and the server that is measured.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ID = "token_id:"


@dataclass(frozen=True)
class Server:
    """Where to ask: base URL without /v1, the model to name, the bearer token."""

    base_url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 600.0


class Said(Value):
    """One answer. ids, logprobs: the most likely first answer tokens, most likely first; none where the server gave none."""

    text: str
    ended: bool
    tokens: int
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()

    @property
    def answer(self) -> Answer:
        return Answer(self.text, self.ended, self.tokens)


def answers(server: Server, prompts: Prompts, length: int, k: int, say: Callable[[str], None]) -> tuple[Said, ...]:
    """One request after the other: in a batch of changing make-up, greedy answers differ by rounding alone.

    Raises BadRequest for what the server refuses, BenchError when it does not answer.
    """
    found = []
    for number, prompt in enumerate(prompts.texts, 1):
        found.append(said(_post(server, body(server.model, prompt, length, k))))
        if number % 25 == 0 or number == len(prompts.texts):
            say(f"{prompts.name}: answer {number} of {len(prompts.texts)}")
    return tuple(found)


def body(model: str, prompt: str, length: int, k: int) -> dict[str, Any]:
    """Greedy, without thinking (a template that knows no thinking passes that over), tokens named by id: two may have the same text."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": length,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": k,
        "return_tokens_as_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def said(answer: Any) -> Said:
    """A chat completion as facts. Raises BenchError for an answer of another form."""
    try:
        choice, usage = answer["choices"][0], answer["usage"]
        ids, logprobs = _first(choice.get("logprobs"))
        text = choice["message"]["content"] or ""
        return Said(text=text, ended=choice["finish_reason"] == "stop", tokens=usage["completion_tokens"], ids=ids, logprobs=logprobs)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(f"the server's chat completion has another form: {type(error).__name__}: {error}\ntry: invoke logs") from error


def _first(logprobs: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log-probabilities of the most likely first tokens; nothing when they are missing or not named by id."""
    with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
        rows = [(float(entry["logprob"]), entry["token"]) for entry in logprobs["content"][0]["top_logprobs"]]
        rows.sort(key=lambda row: -row[0])
        if rows and all(token.startswith(_ID) for _, token in rows):
            return tuple(int(token.removeprefix(_ID)) for _, token in rows), tuple(value for value, _ in rows)
    return (), ()


def _post(server: Server, asked: dict[str, Any]) -> Any:
    url = f"{server.base_url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {server.api_key}"} if server.api_key else {})
    try:
        with _OPENER.open(urllib.request.Request(url, json.dumps(asked).encode(), headers), timeout=server.timeout_s) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace").strip()
        kind = BadRequest if 400 <= error.code < 500 else BenchError
        hint = "a smaller --top-k" if "logprobs" in text else "invoke status, invoke logs"
        raise kind(f"{url}: HTTP {error.code}: {text[:400]}\ntry: {hint}") from error
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        raise BenchError(f"{url}: no usable answer: {error}\ntry: invoke status, invoke logs") from error
