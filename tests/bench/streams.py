"""Streams of every kind that a server may send, with what a client must say of each, written by hand."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from bench import arrival, lean
from bench.request import Deadlines, Endpoint, Request
from bench.trace import Trace
from tests.fakes.builders import (
    More,
    bursts,
    count_reply,
    error_reply,
    rate_limited,
    server_error,
    smoothed,
    split_raw,
    stream_error,
    uniform,
)
from tests.fakes.script import (
    Comment,
    Content,
    Cut,
    Done,
    Finish,
    Raw,
    Reasoning,
    Reply,
    Role,
    Scenario,
    Stall,
    Step,
    TimingsUsage,
    ToolCall,
    Usage,
    Wait,
)  # fmt: skip
from tests.fakes.sse_server import ScriptedServer

END: list[Step] = [Finish(), Usage(), Done()]
SHORT = Deadlines(connect_s=2, first_s=0.8, stall_s=0.4)


def event(text: str) -> Raw:
    return Raw.of(f"data: {text}\n\n".encode())


WORLD = "Grüße, 世界 🌍"
HALVES = (
    '{"choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":null}]}',
    '{"choices":[{"index":0,"delta":{"content":"\\ude00"},"finish_reason":null}]}',
)
# name -> (reply, kinds, text, error prefix), the last three written by hand
CASES: dict[str, tuple[Reply, str, str, str | None]] = {
    "one token a chunk": (Reply(uniform(3, usage="per-chunk")), "rcccfu", "tok tok tok ", None),
    "bursts": (Reply(bursts([(0, 1), (0.01, 4)], "per-chunk")), "rccfu", "tok " * 5, None),
    "smoothed": (Reply(smoothed(4, 2, 0.02)), "rccccfu", "tok " * 4, None),
    "token ids": (Reply(uniform(6, 4, more=More(token_ids=True))), "rccfu", "tok " * 6, None),
    "timings": (Reply(uniform(4, 2, usage="timings-per-chunk")), "rccfe", "tok " * 4, None),
    "timings at the end": (Reply([Role(), Content("a"), Finish(), TimingsUsage(with_choices=True), Done()]), "rcfe", "a", None),
    "no usage": (Reply(uniform(2, usage="none")), "rccf", "tok tok ", None),
    "usage beside a choice": (Reply([Role(), Content("a"), Finish(), Usage(5, 7, with_choices=True), Done()]), "rcfe", "a", None),
    "cached": (Reply([Content("a"), Finish(), Usage(100, 1, cached=64), Done()]), "cfu", "a", None),
    "reasoning": (Reply([Role(), Reasoning("hm"), Content("a"), *END]), "rkcfu", "a", None),
    "reasoning_content": (Reply([Role(), Reasoning("hm", field="reasoning_content"), Content("a"), *END]), "rkcfu", "a", None),
    "tool calls": (Reply([Role(), ToolCall("f", "{"), ToolCall(None, "}"), Finish("tool_calls"), Usage(), Done()]), "rttfu", "", None),
    "several choices": (Reply([Role(), Content("a"), Content("b", index=1), Content("c"), *END]), "rcecfu", "ac", None),
    "comments": (Reply([Comment(), Role(), Comment("x"), Content("a"), *END]), "rcfu", "a", None),
    "carriage returns": (Reply([Role(), Comment(), Content("a"), *END], line_end="\r\n"), "rcfu", "a", None),
    "two data lines": (Reply([Raw.of(b'event: x\nid: 1\ndata: {"choices":\ndata: []}\n\n'), Content("a"), *END]), "ecfu", "a", None),
    "no blank after the colon": (Reply([Raw.of(b'data:{"choices":[]}\n\n'), Content("a"), *END]), "ecfu", "a", None),
    "empty text": (Reply([Role(), Content("", 0), Content("a"), *END]), "recfu", "a", None),
    "a late head": (Reply([Wait(0.05), *uniform(2)], early_head=False), "rccfu", "tok tok ", None),
    "cut characters": (Reply(split_raw(b"".join([f'data: {{"choices":[{{"index":0,"delta":{{"content":"{WORLD}"}},'.encode(),
                                                 b'"finish_reason":"stop"}]}\n\n']), [60, 61, 62, 63, 70, 75])), "c", WORLD, None),
    "no [DONE]": (Reply([Role(), Content("a"), Finish(), Usage()]), "rcfu", "a", None),
    "after [DONE]": (Reply([Content("a"), *END, Content("never")]), "cfu", "a", None),
    "empty choices": (Reply([event('{"choices":[],"usage":null}'), Content("a"), *END]), "ecfu", "a", None),
    # --- faults ---
    "500": (server_error(), "", "", "HTTP 500: "),
    "429": (rate_limited(3), "", "", "HTTP 429: "),
    "404": (error_reply(404, "no such model"), "", "", "HTTP 404: "),
    "400 as text": (Reply(status=400, error="<html>bad</html>"), "", "", "HTTP 400: "),
    "503 without body": (Reply(status=503), "", "", "HTTP 503: "),
    "reset": (Reply([Role(), Content("a"), Cut("reset")]), "rc", "a", "broken off after 2 chunks: "),
    "close": (Reply([Role(), Content("a"), Cut("close")]), "rc", "a", "broken off after 2 chunks: "),
    "reset at once": (Reply([Cut("reset")]), "", "", "broken off after 0 chunks: "),
    "no finish reason": (Reply([Role(), Content("a"), Done()]), "rc", "a", "the stream ended without a finish reason"),
    "error event": (Reply([Role(), Content("a"), stream_error("engine is dead")]), "rc", "a", "broken off after 2 chunks: "),
    "error after the finish": (Reply([Content("a"), Finish(), stream_error("late")]), "cf", "a", "broken off after 2 chunks: "),
    "stall": (Reply([Role(), Content("a"), Stall()]), "rc", "a", "stalled: no data for 0.4 s after 2 chunks"),
    "stall with keep-alive": (Reply([Role(), Stall(0.05)]), "r", "", "stalled: no data for 0.4 s after 1 chunks"),
    "silent": (Reply([Stall()]), "", "", "stalled: no data for 0.8 s after 0 chunks"),
    "half an event": (Reply([Content("a"), Finish(), Raw.of(b'data: {"choices"')]), "cf", "a", None),
    "no JSON": (Reply([Content("a"), event("{nonsense"), *END]), "c", "a", "broken off after 1 chunks: "),
    "no object": (Reply([Content("a"), event("[1]"), *END]), "c", "a", "broken off after 1 chunks: "),
    "no UTF-8": (Reply([Content("a"), Raw.of(b'data: {"choices":"\xff"}\n\n'), *END]), "c", "a", "broken off after 1 chunks: "),
    "no choices": (Reply([Content("a"), event('{"object":"error","message":"x"}'), *END]), "c", "a", "broken off after 1 chunks: "),
    "an empty body": (Reply([Comment()]), "", "", None),
}  # fmt: skip
DIFFER = {"an empty body"}  # tested alone: only ours names the body
FRAMED = {"bytes": "bytes:7", "joined": "joined:3", "random": "random:11"}
FRAMED_NAMES = ["one token a chunk", "several choices", "reasoning", "cached", "carriage returns"]


def scenario() -> Scenario:
    replies = [_named(reply, name) for name, (reply, _, _, _) in CASES.items()]
    for word, framing in FRAMED.items():
        replies += [_named(CASES[name][0], f"{word} {name}", framing) for name in FRAMED_NAMES]
    replies += [_named(Reply([event(HALVES[0]), event(HALVES[1]), *END]), "surrogates")]
    replies += [_named(Reply([Content("a"), Stall()]), "endless"), _named(count_reply(40, 0.01), "counting")]
    return Scenario(replies, any_model=True)


def _named(reply: Reply, name: str, framing: str | None = None) -> Reply:
    return replace(reply, when=f"<{name}>", framing=framing or reply.framing)


Stream = Callable[..., Coroutine[Any, Any, Trace]]
LOOPS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {"asyncio": asyncio.run, "reading": lean.run}


def ask(name: str) -> Request:
    return Request("test-model", f"<{name}>", 64)


def traced(server: ScriptedServer, name: str, client: Stream = lean.stream, loop: str = "reading") -> Trace:
    trace: Trace = LOOPS[loop](client(Endpoint(server.base_url, None, "vllm"), ask(name), SHORT))
    return trace


@contextlib.contextmanager
def stamps() -> Iterator[None]:
    """The kernel stamps what arrives: it begins to a moment after the first socket has asked for it."""
    with (
        arrival.stamping(),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as ours,
        listener.accept()[0] as theirs,
    ):
        assert arrival.stamped(ours)
        deadline = time.monotonic() + 20
        while not _one_stamp(ours, theirs):
            assert time.monotonic() < deadline, "the kernel stamps nothing"
        yield


def _one_stamp(ours: socket.socket, theirs: socket.socket) -> bool:
    theirs.send(b"x")
    return bool(arrival.receive(ours)(1, arrival.ROOM)[1])
