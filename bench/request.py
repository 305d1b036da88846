"""What is asked of which server, and how long to wait: values, no I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Dialect = Literal["vllm", "llamacpp", "openai"]
INTERRUPTED = "interrupted"  # the error of a trace that Ctrl-C ended
Listener = Callable[[str, str], None]  # (kind, text) of each delta as it arrives


@dataclass(frozen=True)
class Endpoint:
    """A server: base URL without /v1, bearer token, and which extensions of the API it understands."""

    base_url: str
    api_key: str | None = None
    dialect: Dialect = "openai"


@dataclass(frozen=True)
class Deadlines:
    """Wall-clock limits in seconds: to connect, to the first data (a long prefill is silent), and between two chunks."""

    connect_s: float = 5
    first_s: float = 600
    stall_s: float = 120


@dataclass(frozen=True)
class Request:
    """One chat request. thinking: True/False/effort word for models that think, None: leave it to the server.

    history: earlier turns as (role, text), which go before `content`, the last user message. to_the_limit: the answer must reach
    max_tokens; asked of servers that know how (vLLM, llama.cpp).
    """

    model: str
    content: Any
    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    thinking: bool | str | None = False
    history: tuple[tuple[str, str], ...] = ()
    to_the_limit: bool = False

    def body(self, dialect: Dialect) -> dict[str, Any]:
        """The arguments of chat.completions.create; what is not standard stands in extra_body."""
        sampling = {"temperature": self.temperature, "top_p": self.top_p}
        earlier = [{"role": role, "content": text} for role, text in self.history]
        return {
            "model": self.model,
            "messages": [*earlier, {"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            **{name: value for name, value in sampling.items() if value is not None},
            "stream": True,
            "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if dialect == "vllm" else {})},
            "extra_body": self._extensions(dialect),
        }

    def wire(self, dialect: Dialect) -> dict[str, Any]:
        """The JSON object that is sent: the standard and the other arguments side by side."""
        body = self.body(dialect)
        return {**{name: value for name, value in body.items() if name != "extra_body"}, **body["extra_body"]}

    def _extensions(self, dialect: Dialect) -> dict[str, Any]:
        """vLLM states tokens per chunk as usage and ids, llama.cpp as timings; a plain OpenAI server may refuse either."""
        per_chunk: dict[Dialect, dict[str, Any]] = {
            "vllm": {"return_token_ids": True},
            "llamacpp": {"timings_per_token": True},
            "openai": {},
        }
        extra = dict(per_chunk[dialect])
        if dialect != "openai" and self.thinking is not None:
            extra["chat_template_kwargs"] = {"enable_thinking": bool(self.thinking)}
        if dialect != "openai" and self.to_the_limit:
            extra["ignore_eos"] = True
        if isinstance(self.thinking, str):
            extra["reasoning_effort"] = self.thinking
        return extra

    def sha256(self, dialect: Dialect) -> str:
        """Hash of the whole request body as canonical JSON."""
        return hashlib.sha256(json.dumps(self.body(dialect), sort_keys=True).encode()).hexdigest()
