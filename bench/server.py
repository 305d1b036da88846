"""What a server says beside its answers: counters, context length, and how many tokens a prompt has. Plain GET and POST."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from bench import counters
from bench.counters import Counters, delta
from bench.stream import Endpoint

_SETTLE_S = 2.0
_LONG_S = 120.0  # tokenizing a hundred thousand tokens takes a server a moment
# A proxy from the environment must not stand between us and the server that is measured.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _ask(endpoint: Endpoint, path: str, body: Any = None, timeout_s: float = 10) -> str | None:
    """The answer's text to a GET (or a POST of JSON), or None when the server has none for us."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(f"{endpoint.base_url}{path}", data=data, headers=headers | kind)
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            return str(answer.read().decode(errors="replace"))
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _json(text: str | None) -> dict[str, Any]:
    """A JSON object, {} for anything else."""
    try:
        value = json.loads(text or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


async def read_counters(endpoint: Endpoint) -> Counters | None:
    """The server's counters now, or None when it offers none in a dialect that we know."""
    text = await asyncio.to_thread(_ask, endpoint, "/metrics")
    return None if text is None else counters.parse(text)


async def settled(endpoint: Endpoint, before: Counters | None, own_tokens: int | None) -> Counters | None:
    """The counters after requests: servers book a finished request a moment after its last byte, so wait for that."""
    deadline = asyncio.get_running_loop().time() + _SETTLE_S
    while True:
        after = await read_counters(endpoint)
        if before is None or after is None or own_tokens is None:
            return after
        booked = (delta(before, after).generation_tokens or 0) >= own_tokens and not after.running
        if booked or asyncio.get_running_loop().time() >= deadline:
            return after
        await asyncio.sleep(0.05)


async def context_tokens(endpoint: Endpoint, model: str) -> int | None:
    """The longest request in tokens, as vLLM states it with the model or llama.cpp in its properties; None: not stated."""
    models = _json(await asyncio.to_thread(_ask, endpoint, "/v1/models")).get("data")
    cards = [card for card in models if isinstance(card, dict)] if isinstance(models, list) else []
    stated = next((_whole(card.get("max_model_len")) for card in cards if card.get("id") == model), None)
    if stated:
        return stated
    settings = _json(await asyncio.to_thread(_ask, endpoint, "/props")).get("default_generation_settings")
    return _whole(settings.get("n_ctx")) if isinstance(settings, dict) else None


async def prompt_tokens(endpoint: Endpoint, model: str, text: str) -> int | None:
    """How many prompt tokens one user message of `text` makes, chat template included; None where the server has no such route."""
    return await asyncio.to_thread(_prompt_tokens, endpoint, model, text)


def _prompt_tokens(endpoint: Endpoint, model: str, text: str) -> int | None:
    messages = [{"role": "user", "content": text}]
    if endpoint.dialect == "vllm":
        body = {"model": model, "messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
        return _whole(_json(_ask(endpoint, "/tokenize", body, _LONG_S)).get("count"))
    if endpoint.dialect == "llamacpp":
        options = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
        prompt = _json(_ask(endpoint, "/apply-template", options, _LONG_S)).get("prompt")
        content = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = _json(_ask(endpoint, "/tokenize", content, _LONG_S)).get("tokens") if isinstance(prompt, str) else None
        return len(tokens) if isinstance(tokens, list) and tokens else None
    return None
