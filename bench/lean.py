"""One streamed chat request over a bare socket, recorded as a Trace: the client that measures.

The official client spends most of its time on objects that a measurement does not look at. Here each read of a socket is stamped
and kept, and nearly all are parsed after the stream has ended (bench.recording, bench.reading); there is no task, no timer and no
callback per event. `bench.openai_stream` is the same through the official client; a test holds the two equal.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable

from bench.connection import Where, connect
from bench.errors import BadRequest
from bench.reading import run
from bench.recording import Recording
from bench.request import INTERRUPTED, Deadlines, Endpoint, Listener, Request
from bench.trace import Trace

__all__ = ["run", "stream"]


async def stream(
    endpoint: Endpoint, request: Request, deadlines: Deadlines, listen: Listener | None = None, began: Callable[[int], None] | None = None
) -> Trace:
    """Send one request and record its stream. A fault, also Ctrl-C, ends the trace with `error` instead of raising.

    The connection is made first; the clock starts when the request is written to it. `began` is told that moment in
    CLOCK_MONOTONIC ns: the times of several traces of one process lie on one axis with it. Raises BrokenPipeError of the listener.
    """
    where = Where.of(endpoint)
    words = _http_request(where, endpoint, request)
    recording = Recording(deadlines, listen)
    try:
        recording.begin(await connect(where, deadlines.connect_s), words)
        if began:
            began(recording.columns.begin_ns)
        await recording.over
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task:
            task.uncancel()
        return recording.trace(INTERRUPTED)
    except Exception as error:  # connecting fails in many ways: name, route, refusal, certificate, time
        if recording.listener_failed:
            raise  # its reader has gone
        return recording.trace(f"broken off after 0 chunks: no connection to {where.host}:{where.port}: {_why(error)}")
    finally:
        recording.close()
    return recording.trace(recording.error)


def _http_request(where: Where, endpoint: Endpoint, request: Request) -> bytes:
    body = json.dumps(request.wire(endpoint.dialect)).encode()
    host = f"[{where.host}]" if ":" in where.host else where.host
    fields = {
        "Host": f"{host}:{where.port}",
        "Authorization": f"Bearer {endpoint.api_key or 'none'}",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "spark-lab",
        "Connection": "close",
        "Content-Length": str(len(body)),
    }
    if any(char in value for value in (*fields.values(), where.path) for char in "\r\n\0"):
        raise BadRequest("a line break in the API key or the URL\ntry: check VLLM_API_KEY and --base-url")
    head = [f"POST {where.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(head).encode() + body


def _why(error: Exception) -> str:
    """The system's own words for an error number: the event loops wrap them differently."""
    number = None if isinstance(error, ssl.SSLError) else getattr(error, "errno", None)  # its numbers are no errno
    return os.strerror(number) if isinstance(number, int) and number > 0 else str(error) or type(error).__name__
