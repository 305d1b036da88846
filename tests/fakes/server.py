"""The scripted server itself: routes, choice of replies, playing a reply at its due times. One event loop."""

import asyncio
import itertools
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tests.fakes import render
from tests.fakes.builders import error_body, model_not_found
from tests.fakes.counters import Counters, Meter
from tests.fakes.framing import Piece
from tests.fakes.link import Link, Request
from tests.fakes.records import EndRecord, Log, RequestRecord
from tests.fakes.rendered import Rendered
from tests.fakes.script import Cut, Reply, Scenario, Stall, Wait
from tests.fakes.wheel import Wheel

EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}


class Server:
    """Plays one scenario and records to `log`. `faulty` turns True at an error of the server's own. Made in the running loop."""

    def __init__(self, scenario: Scenario, log: Log) -> None:
        self.scenario, self.log = scenario, log
        self.wheel = Wheel()
        self.rendered = Rendered(scenario)
        self.counters = Counters(scenario)
        self.faulty = False
        self._requests, self._connections = itertools.count(), itertools.count()
        self._used: Counter[str | None] = Counter()
        self._health = 0

    async def serve(self, link: Link) -> None:
        """Every request of one connection, until either side closes it."""
        connection = next(self._connections)
        try:
            while await self._answer_next(link, connection):
                pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception:
            self.faulty = True
            traceback.print_exc(file=sys.stderr)
        link.cut("close")

    async def _answer_next(self, link: Link, connection: int) -> bool:
        try:
            request = await link.request()
        except ValueError as fault:
            await link.send(whole(400, error_body(f"no HTTP/1.1 request: {fault}", "BadRequestError", 400)))
            return False
        index = next(self._requests)
        seen = (request.method, request.path, request.headers, request.body, request.t_received_ns, request.t_came_ns)
        self.log.add(RequestRecord(index, connection, *seen))
        path = request.path.partition("?")[0]
        if path.startswith("/v1/") and not self._authorized(request):
            body = error_body("Incorrect API key provided", "invalid_request_error", "invalid_api_key")
            await link.send(whole(401, body, {"WWW-Authenticate": "Bearer"}))
        elif (request.method, path) == ("POST", "/v1/chat/completions"):
            return await self._chat(link, request, index) and request.keep_alive
        else:
            await link.send(self._get(request.method, path))
        return request.keep_alive

    def _authorized(self, request: Request) -> bool:
        key = self.scenario.api_key
        return key is None or request.headers.get("authorization") == f"Bearer {key}"

    def _get(self, method: str, path: str) -> bytes:
        if (method, path) == ("GET", "/v1/models"):
            return whole(200, {"object": "list", "data": [self._model(name) for name in self.scenario.models]})
        if (method, path) == ("GET", "/health"):
            return self._health_answer()
        if (method, path) == ("GET", "/metrics") and self.scenario.metrics:
            return whole(200, self.counters.text(), {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
        return whole(404, error_body(f"no route {method} {path}", "NotFoundError", 404))

    def _model(self, name: str) -> dict[str, Any]:
        head = {"id": name, "object": "model", "created": render.CREATED, "owned_by": "scripted"}
        return head | {"root": name, "max_model_len": self.scenario.max_model_len}

    def _health_answer(self) -> bytes:
        status = self.scenario.health[min(self._health, len(self.scenario.health) - 1)]
        self._health += 1
        body = {"status": "ok"} if status == 200 else error_body("Loading model", "unavailable_error", status)
        return whole(status, body)

    async def _chat(self, link: Link, request: Request, index: int) -> bool:
        """Play the reply; return whether the connection can go on."""
        reply, model = self._choose(request)
        play = Play(self, link, (index, reply, model, request.t_received_ns))
        if reply.status != 200:
            return await play.error()
        stream = isinstance(request.body, dict) and request.body.get("stream") is True
        return await play.run(stream)

    def _choose(self, request: Request) -> tuple[Reply, str]:
        """The reply for this request and the model name to show."""
        if not isinstance(request.body, dict):
            return Reply(status=400, error=error_body("the body is no JSON object", "BadRequestError", 400)), ""
        model = request.body.get("model")
        if model not in self.scenario.models and not self.scenario.any_model:
            return model_not_found(str(model)), ""
        text = last_user_message(request.body)
        group = next((r.when for r in self.scenario.replies if r.when is not None and r.when in text), None)
        replies = [reply for reply in self.scenario.replies if reply.when == group]
        if not replies:
            return Reply(status=500, error=error_body(f"no reply scripted for {text!r}", "scripted", 500)), ""
        turn = self._used[group]
        self._used[group] += 1
        last = len(replies) - 1
        return replies[turn % len(replies) if self.scenario.order == "cycle" else min(turn, last)], str(model)


class Play:
    """One reply on its way out. `what` = (request index, reply, model, arrival in CLOCK_MONOTONIC ns)."""

    def __init__(self, server: Server, link: Link, what: tuple[int, Reply, str, int]) -> None:
        self._log, self._counters, self._link = server.log, server.counters, link
        self._wheel, self._rendered = server.wheel, server.rendered
        self._index, self._reply, self._model, self._start_ns = what
        self._tokens = 0
        self._head = b""

    async def error(self) -> bool:
        await self._sleep(sum(step.s for step in self._reply.steps if isinstance(step, Wait)))
        data = whole(self._reply.status, self._reply.error, self._reply.headers)
        self._sent(render.Event(-1, "error", 0.0, 0, data), await self._link.send(data))
        self._ended("complete")
        return True

    async def run(self, stream: bool) -> bool:
        """Return False where the connection is cut. Re-raises what ends the task."""
        self._meter = Meter(self._counters, self._reply)
        try:
            outcome = await (self._stream() if stream else self._merged())
            self._ended(outcome)
            return outcome == "complete"
        except (ConnectionError, asyncio.CancelledError) as end:
            gone = self._link.gone or isinstance(end, ConnectionError)
            self._ended("client_gone" if gone else "stopped")
            raise
        finally:
            self._meter.end()
            if not self._counters.running:
                self._log.flush()

    async def _stream(self) -> str:
        self._head = head(200, EVENT_STREAM | dict(self._reply.headers))
        if self._reply.early_head:
            await self._link.send(self._take_head())
        for piece in self._rendered.pieces(self._reply, self._model, self._index):
            await self._sleep(piece.due_s)
            action = piece.done[-1].action if piece.done else None
            if action:
                return await self._act(action, piece.done[-1])
            await self._send(piece)
        return "complete"

    async def _send(self, piece: Piece) -> None:
        if piece.done:
            self._meter.tokens = piece.done[-1].tokens
        for event in piece.done:
            if event.kind in ("done", "end"):
                self._meter.close()
        now = await self._link.send(self._take_head() + http_chunk(piece.data))
        for event in piece.done:
            self._sent(event, now)

    async def _act(self, action: Cut | Stall, event: render.Event) -> str:
        if self._head:
            await self._link.send(self._take_head())
        self._sent(event, time.monotonic_ns())
        if isinstance(action, Cut):
            self._link.cut(action.mode)
            return "cut"
        return await self._stall(action, event)

    async def _stall(self, stall: Stall, event: render.Event) -> str:
        """Ends by cancellation only."""
        data = render.comment(stall.comment, self._reply.line_end)
        for turn in itertools.count(1):
            await self._sleep(event.due_s + turn * (stall.comment_every_s or 3600.0))
            if stall.comment_every_s:
                now = await self._link.send(http_chunk(data))
                self._sent(render.Event(event.step, "comment", event.due_s, event.tokens, data), now)
        raise AssertionError("unreachable")

    async def _merged(self) -> str:
        """The answer without streaming, due when the last step is."""
        *_, last = render.events(self._reply, self._model, self._index)
        await self._sleep(last.due_s)
        if last.action:
            return await self._act(last.action, last)
        self._meter.tokens = last.tokens
        self._meter.close()
        data = whole(200, render.merged(self._reply, self._model, self._index), self._reply.headers)
        now = await self._link.send(data)
        self._sent(render.Event(-1, "json", last.due_s, last.tokens, data), now)
        return "complete"

    def _take_head(self) -> bytes:
        taken, self._head = self._head, b""
        return taken

    async def _sleep(self, due_s: float) -> None:
        """Always lets the other streams run, also where the time has passed."""
        await self._wheel.until(self._start_ns + round(due_s * 1e9))

    def _sent(self, event: render.Event, now_ns: int) -> None:
        self._tokens = event.tokens
        if event.kind != "end":
            due_ns = self._start_ns + round(event.due_s * 1e9)
            self._log.sent((self._index, event.step, event.kind, event.tokens, due_ns, now_ns, len(event.data)))

    def _ended(self, outcome: str) -> None:
        self._log.add(EndRecord(self._index, outcome, self._tokens, time.monotonic_ns()))


def last_user_message(body: Mapping[str, Any]) -> str:
    """Its text; content parts are joined. "" where there is none."""
    messages = [m for m in body.get("messages") or [] if isinstance(m, dict) and m.get("role") == "user"]
    content = messages[-1].get("content") if messages else ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = HTTPStatus(status).phrase
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def whole(status: int, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """A complete answer: objects as JSON, str as plain text, None as an empty body."""
    kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    data = body if isinstance(body, str) else "" if body is None else render.compact(body)
    length = {"Content-Length": str(len(data.encode()))}
    return head(status, {"Content-Type": kind} | dict(headers or {}) | length) + data.encode()
