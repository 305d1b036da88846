"""One streamed chat request through the official `openai` client, recorded as a Trace: for `ask`, and as the cross-check of
`bench.lean`. The only module that imports openai."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import openai

from bench.columns import Columns, kind_of
from bench.errors import BadRequest, BenchError
from bench.request import INTERRUPTED, Deadlines, Endpoint, Listener, Request
from bench.trace import Kind, Trace, Usage


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


class _Recorder:
    """Reads the client's chunk objects into columns."""

    def __init__(self, listen: Listener | None) -> None:
        self.columns = Columns(time.monotonic_ns())
        self._listen = listen
        self._ids = 0

    def add(self, chunk: Any) -> None:
        """Record one chunk. The time is taken first, before anything is looked at."""
        now = time.monotonic_ns()
        choice = next((choice for choice in chunk.choices if choice.index == 0), None)
        kind = self._read(choice) if choice else "u" if chunk.usage else "e"
        self.columns.add(now, kind, self._count(chunk, choice))
        if chunk.usage:
            self.columns.usage = _usage(chunk.usage)

    def _read(self, choice: Any) -> Kind:
        """The chunk's kind; keeps its text and finish reason."""
        delta = choice.delta
        # vLLM says `reasoning`, others `reasoning_content`
        thought = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None) or ""
        content = delta.content or ""
        self.columns.finish_reason = choice.finish_reason or self.columns.finish_reason
        kind = kind_of(content, thought, bool(delta.tool_calls), bool(choice.finish_reason), bool(delta.role))
        self.columns.text.append(content)
        self.columns.reasoning.append(thought)
        if self._listen and (thought or content):
            self._listen(kind, thought + content)
        return kind

    def _count(self, chunk: Any, choice: Any) -> int | None:
        """Cumulative completion tokens that this chunk states."""
        if not choice:
            return self.columns.count(None, None, None)
        ids = getattr(choice, "token_ids", None)
        self._ids += len(ids or ())
        timings = getattr(chunk, "timings", None) or {}
        usage = chunk.usage.completion_tokens if chunk.usage else None
        return self.columns.count(usage, timings.get("predicted_n"), self._ids if ids else None)

    def trace(self, error: str | None) -> Trace:
        return self.columns.trace(time.monotonic_ns(), error)


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
    """The same as bench.lean.stream, but for the connection: it is made after the clock has started, so TTFT holds it."""
    async with client(endpoint, deadlines) as connection:
        # The clock starts with everything set up but the connection: its one round trip is part of TTFT.
        recorder = _Recorder(listen)
        if began:
            began(recorder.columns.begin_ns)
        try:
            await _consume(connection, request.body(endpoint.dialect), deadlines, recorder)
        except TimeoutError:
            waited = deadlines.stall_s if recorder.columns.at_ns else deadlines.first_s
            return recorder.trace(f"stalled: no data for {waited:g} s after {len(recorder.columns.at_ns)} chunks")
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
            return recorder.trace(f"broken off after {len(recorder.columns.at_ns)} chunks: {type(error).__name__}: {_reason(error)}")
        return recorder.trace(None)


async def _consume(connection: openai.AsyncOpenAI, body: dict[str, Any], deadlines: Deadlines, recorder: _Recorder) -> None:
    now = asyncio.get_running_loop().time
    async with asyncio.timeout(deadlines.first_s) as guard:
        async with await connection.chat.completions.create(**body) as chunks:
            async for chunk in chunks:
                recorder.add(chunk)
                guard.reschedule(now() + deadlines.stall_s)
