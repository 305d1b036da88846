"""One streamed chat request through the official `openai` client, recorded as a Trace. The only module that imports openai."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import openai

from bench.errors import BadRequest, BenchError
from bench.trace import Kind, Trace, Usage

Dialect = Literal["vllm", "llamacpp", "openai"]
INTERRUPTED = "interrupted"  # the error of a trace that Ctrl-C ended
CountedBy = Literal["usage", "timings", "token_ids"]
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
    """One chat request. thinking: True/False/effort word for models that think, None: leave it to the server."""

    model: str
    content: Any
    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    thinking: bool | str | None = False

    def body(self, dialect: Dialect) -> dict[str, Any]:
        """The arguments of chat.completions.create; what is not standard stands in extra_body."""
        sampling = {"temperature": self.temperature, "top_p": self.top_p}
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            **{name: value for name, value in sampling.items() if value is not None},
            "stream": True,
            "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if dialect == "vllm" else {})},
            "extra_body": self._extensions(dialect),
        }

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
        if isinstance(self.thinking, str):
            extra["reasoning_effort"] = self.thinking
        return extra

    def sha256(self, dialect: Dialect) -> str:
        """Hash of the whole request body as canonical JSON."""
        return hashlib.sha256(json.dumps(self.body(dialect), sort_keys=True).encode()).hexdigest()


def client(endpoint: Endpoint, deadlines: Deadlines) -> openai.AsyncOpenAI:
    """A client that never retries (a retry would be timed as one request) and uses no proxy from the environment."""
    timeout = openai.Timeout(connect=deadlines.connect_s, read=None, write=deadlines.stall_s, pool=None)
    return openai.AsyncOpenAI(
        base_url=f"{endpoint.base_url}/v1",
        api_key=endpoint.api_key or "none",
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


async def served_models(endpoint: Endpoint, deadlines: Deadlines) -> tuple[tuple[str, ...], str]:
    """The served model ids and the owner the server states. Raises BadRequest or BenchError with what to try."""
    url = f"{endpoint.base_url}/v1/models"
    try:
        async with client(endpoint, deadlines) as connection, asyncio.timeout(30):
            page = await connection.models.list()
            models = list(page.data)
    except openai.AuthenticationError as error:
        raise BadRequest(f"{url} refuses the API key (401)\ntry: set VLLM_API_KEY (or API_KEY) to the server's key") from error
    except openai.NotFoundError as error:
        raise BadRequest(f"{url} does not exist (404)\ntry: --base-url without a path, as http://HOST:PORT") from error
    except openai.APIStatusError as error:
        raise BenchError(f"{url} answered {error.status_code}: {str(error)[:200]}\ntry: invoke status, invoke logs") from error
    except (openai.APIConnectionError, TimeoutError) as error:
        raise BenchError(f"no server answers at {endpoint.base_url}: {_reason(error)}\ntry: invoke up, or check --base-url") from error
    except Exception as error:  # the client's own parsing of something that is no OpenAI server fails in many ways
        raise BadRequest(f"{url} is no OpenAI-compatible API: {_reason(error)}\ntry: check --base-url") from error
    if not models or not all(isinstance(getattr(model, "id", None), str) for model in models):
        raise BadRequest(f"{url} lists no model\ntry: check --base-url")
    return tuple(model.id for model in models), str(getattr(models[0], "owned_by", ""))


def _reason(error: BaseException) -> str:
    """The innermost message of a chain of exceptions, which names the real cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{error or type(error).__name__}"[:200]


@dataclass
class _Recorder:
    """Grows the columns of a Trace chunk by chunk."""

    begin_ns: int
    listen: Listener | None
    t_s: list[float] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    counted_by: CountedBy | None = None
    ids: int = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def seconds(self) -> float:
        return round((time.monotonic_ns() - self.begin_ns) / 1e9, 6)

    def add(self, chunk: Any) -> None:
        """Record one chunk. The time is taken first, before anything is looked at."""
        now = self.seconds()
        choice = next((choice for choice in chunk.choices if choice.index == 0), None)
        kind = self._read(choice) if choice else "u" if chunk.usage else "e"
        self.t_s.append(now)
        self.kinds.append(kind)
        self.tokens.append(self._count(chunk, choice))
        if chunk.usage:
            self.usage = _usage(chunk.usage)

    def _read(self, choice: Any) -> Kind:
        """The chunk's kind; keeps its text and finish reason."""
        delta = choice.delta
        # vLLM says `reasoning`, others `reasoning_content`
        thought = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None) or ""
        content = delta.content or ""
        self.finish_reason = choice.finish_reason or self.finish_reason
        kind: Kind = (
            "c" if content else "k" if thought else "t" if delta.tool_calls else "f" if choice.finish_reason else "r" if delta.role else "e"
        )
        self.text.append(content)
        self.reasoning.append(thought)
        if self.listen and (thought or content):
            self.listen(kind, thought + content)
        return kind

    def _count(self, chunk: Any, choice: Any) -> int | None:
        """Cumulative completion tokens that this chunk states, by one and the same of its ways of stating them."""
        ids = getattr(choice, "token_ids", None) if choice else None
        self.ids += len(ids or ())
        timings = getattr(chunk, "timings", None) or {}
        stated: dict[CountedBy, int | None] = {
            "usage": chunk.usage.completion_tokens if chunk.usage and choice else None,
            "timings": timings.get("predicted_n") if choice else None,
            "token_ids": self.ids if ids else None,
        }
        if self.counted_by is None:
            self.counted_by = next((way for way, n in stated.items() if n), None)
        return stated[self.counted_by] if self.counted_by else None

    def trace(self, error: str | None) -> Trace:
        if error is None and self.finish_reason is None:
            error = "the stream ended without a finish reason (cut off?)"
        return Trace(
            t_s=tuple(self.t_s),
            kinds="".join(self.kinds),
            tokens=tuple(self.tokens),
            chunk_counts=self.counted_by,
            t_end_s=self.seconds(),
            usage=self.usage,
            finish_reason=self.finish_reason,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            error=error,
        )


def _usage(usage: Any) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=prompt.cached_tokens if prompt else None,
        reasoning_tokens=completion.reasoning_tokens if completion else None,
    )


async def stream(
    endpoint: Endpoint, request: Request, deadlines: Deadlines, listen: Listener | None = None, began: Callable[[int], None] | None = None
) -> Trace:
    """Send one request and record its stream. A fault, also Ctrl-C, ends the trace with `error` instead of raising.

    `began` is told the moment the trace's clock starts, in CLOCK_MONOTONIC ns: the traces of one process lie on one axis with it.
    """
    async with client(endpoint, deadlines) as connection:
        # The clock starts with everything set up but the connection: its one round trip is part of TTFT.
        recorder = _Recorder(time.monotonic_ns(), listen)
        if began:
            began(recorder.begin_ns)
        try:
            await _consume(connection, request.body(endpoint.dialect), deadlines, recorder)
        except TimeoutError:
            waited = deadlines.stall_s if recorder.t_s else deadlines.first_s
            return recorder.trace(f"stalled: no data for {waited:g} s after {len(recorder.t_s)} chunks")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task:
                task.uncancel()
            return recorder.trace(INTERRUPTED)
        except BrokenPipeError:
            raise  # from the listener, whose reader has gone; the client wraps its own in its own classes
        except openai.APIStatusError as error:
            return recorder.trace(f"HTTP {error.status_code}: {str(error)[:200]}")
        except Exception as error:  # whatever the transport raises when a connection breaks: its classes change between releases
            return recorder.trace(f"broken off after {len(recorder.t_s)} chunks: {type(error).__name__}: {_reason(error)}")
        return recorder.trace(None)


async def _consume(connection: openai.AsyncOpenAI, body: dict[str, Any], deadlines: Deadlines, recorder: _Recorder) -> None:
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(deadlines.first_s) as guard:
        async with await connection.chat.completions.create(**body) as chunks:
            async for chunk in chunks:
                recorder.add(chunk)
                guard.reschedule(now() + deadlines.stall_s)
