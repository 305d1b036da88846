"""Steps -> the bytes of each SSE event, and the merged JSON of a non-streamed answer. Pure and deterministic.

Shapes: chat.completion(.chunk) of OpenAI and vLLM (`reasoning`, `token_ids`, running usage), `timings` of llama-server.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.fakes.codec import kind
from tests.fakes.script import (
    Chunk,
    Comment,
    Content,
    Cut,
    Done,
    Finish,
    Raw,
    Reasoning,
    Reply,
    Role,
    Stall,
    Step,
    TimingsUsage,
    TokenStep,
    ToolCall,
    Usage,
    Wait,
    step_tokens,
)

CREATED = 1_760_000_000


class Event(NamedTuple):
    """One step as it goes out, `due_s` after arrival; `tokens` cumulative with it; `data` without HTTP framing."""

    step: int
    kind: str
    due_s: float
    tokens: int
    data: bytes
    action: Cut | Stall | None = None


@dataclass(frozen=True)
class Progress:
    """How far the script has come: cumulative tokens, now, and when the first token was due (None before it)."""

    tokens: int = 0
    now_s: float = 0.0
    first_s: float | None = None

    def after(self, step: Step) -> "Progress":
        if isinstance(step, Wait):
            return replace(self, now_s=self.now_s + step.s)
        tokens = step_tokens(step)
        first_s = self.now_s if tokens and self.first_s is None else self.first_s
        return replace(self, tokens=self.tokens + tokens, first_s=first_s)


def events(reply: Reply, model: str, request: int) -> Iterator[Event]:
    """Every step but Wait as an Event, in order; a last one of kind "end" (no data) stands for the end of the body."""
    progress = Progress()
    for number, step in enumerate(reply.steps):
        progress = progress.after(step)
        if isinstance(step, Wait):
            continue
        action = step if isinstance(step, Cut | Stall) else None
        data = b"" if action else _data(step, reply, progress, _head(model, request))
        yield Event(number, kind(step), progress.now_s, progress.tokens, data, action)
    if not (reply.steps and isinstance(reply.steps[-1], Cut | Stall)):
        yield Event(len(reply.steps), "end", progress.now_s, progress.tokens, b"")


def comment(text: str, line_end: str) -> bytes:
    return f": {text}{line_end}{line_end}".encode()


def compact(value: Any) -> str:
    """JSON as servers write it: no blanks, characters beyond ASCII as UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def request_id(request: int) -> bytes:
    """How the start of each event names its request."""
    return f'"id":"chatcmpl-{request}"'.encode()


def _head(model: str, request: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{request}", "object": "chat.completion.chunk", "created": CREATED, "model": model}


def _data(step: Step, reply: Reply, progress: Progress, head: dict[str, Any]) -> bytes:
    if isinstance(step, Raw):
        return base64.b64decode(step.base64)
    if isinstance(step, Comment):
        return comment(step.text, reply.line_end)
    body = "[DONE]" if isinstance(step, Done) else compact(head | _payload(step, reply, progress))
    return f"data: {body}{reply.line_end}{reply.line_end}".encode()


def _payload(step: Step, reply: Reply, progress: Progress) -> dict[str, Any]:
    if isinstance(step, Usage):
        return {"choices": _empty_choice(step.with_choices), "usage": _usage(step, reply, progress)}
    if isinstance(step, TimingsUsage):
        return {"choices": _empty_choice(step.with_choices), "timings": _timings(step, reply, progress)}
    assert isinstance(step, Chunk)
    payload: dict[str, Any] = {"choices": [_choice(step)]}
    if step.usage:
        payload["usage"] = _usage(Usage(), reply, progress)
    if step.timings:
        payload["timings"] = _timings(TimingsUsage(), reply, progress)
    return payload


def _empty_choice(wanted: bool) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}] if wanted else []


def _choice(step: Chunk) -> dict[str, Any]:
    reason = step.reason if isinstance(step, Finish) else None
    choice = {"index": step.index, "delta": _delta(step), "logprobs": None, "finish_reason": reason}
    return choice if step.token_ids is None else choice | {"token_ids": list(step.token_ids)}


def _delta(step: Chunk) -> dict[str, Any]:
    if isinstance(step, Role):
        return {"role": step.role, "content": step.content}
    if isinstance(step, Content):
        return {"content": step.text}
    if isinstance(step, Reasoning):
        return {step.field: step.text}
    return {"tool_calls": [_call(step)]} if isinstance(step, ToolCall) else {}


def _call(step: ToolCall) -> dict[str, Any]:
    function = {"arguments": step.arguments_delta}
    if step.name is None:
        return {"index": step.call, "function": function}
    function = {"name": step.name} | function
    return {"index": step.call, "id": f"call-{step.call}", "type": "function", "function": function}


def _usage(step: Usage, reply: Reply, progress: Progress) -> dict[str, Any]:
    prompt = reply.prompt_tokens if step.prompt == "auto" else step.prompt
    completion = progress.tokens if step.completion == "auto" else step.completion
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return usage if step.cached is None else usage | {"prompt_tokens_details": {"cached_tokens": step.cached}}


def _timings(step: TimingsUsage, reply: Reply, progress: Progress) -> dict[str, Any]:
    """The clock values are those of the script (due times), so the bytes do not depend on the machine."""
    first_s = progress.now_s if progress.first_s is None else progress.first_s
    cached = reply.cached_tokens if step.cache_n == "auto" else step.cache_n
    prompt = reply.prompt_tokens - cached if step.prompt_n == "auto" else step.prompt_n
    predicted = progress.tokens if step.predicted_n == "auto" else step.predicted_n
    timings = {"cache_n": cached} | _rate("prompt", prompt, first_s)
    timings |= _rate("predicted", predicted, progress.now_s - first_s)
    spec = reply.spec
    draft_n = spec.draft_tokens if spec and step.draft_n is None else step.draft_n
    accepted = spec.accepted if spec and step.draft_n_accepted is None else step.draft_n_accepted
    return timings | {k: v for k, v in (("draft_n", draft_n), ("draft_n_accepted", accepted)) if v is not None}


def _rate(what: str, n: int, seconds: float) -> dict[str, float]:
    ms = round(1000 * seconds, 3)
    return {
        f"{what}_n": n,
        f"{what}_ms": ms,
        f"{what}_per_token_ms": ms / n if n else 0.0,
        f"{what}_per_second": 1000 * n / ms if ms else 0.0,
    }


def merged(reply: Reply, model: str, request: int) -> dict[str, Any]:
    """The same steps as one chat.completion: texts joined per choice, the last usage sent (else the true one)."""
    progress, last = Progress(), Usage()
    extra: dict[str, Any] = {}
    for step in reply.steps:
        progress = progress.after(step)
        last = step if isinstance(step, Usage) else last
        if isinstance(step, TimingsUsage):
            extra = {"timings": _timings(step, reply, progress)}
    indexes = sorted({step.index for step in reply.steps if isinstance(step, Chunk)} | {0})
    body = {"choices": [_whole_choice(reply, index) for index in indexes], "usage": _usage(last, reply, progress)}
    return _head(model, request) | {"object": "chat.completion"} | body | extra


def _whole_choice(reply: Reply, index: int) -> dict[str, Any]:
    steps = [step for step in reply.steps if isinstance(step, Chunk) and step.index == index]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for step in steps:
        if isinstance(step, Content | Reasoning | ToolCall):
            _add(message, step)
    reason = next((step.reason for step in steps if isinstance(step, Finish)), None)
    choice = {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
    ids = [one for step in steps for one in step.token_ids or ()]
    return choice | {"token_ids": ids} if ids else choice


def _add(message: dict[str, Any], step: TokenStep) -> None:
    if isinstance(step, ToolCall):
        calls = message.setdefault("tool_calls", [])
        if step.call < len(calls):
            calls[step.call]["function"]["arguments"] += step.arguments_delta
        else:
            calls.append({key: value for key, value in _call(step).items() if key != "index"})
        return
    field = step.field if isinstance(step, Reasoning) else "content"
    message[field] = (message.get(field) or "") + step.text
