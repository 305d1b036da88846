"""A server whose tokens are words: it has a tokenizer route, a prefix cache, counters and a speed, all of which a test can foretell.

In a thread of its own, over real sockets. The scripted server of tests/fakes plays scripts; this one reacts to what it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TEMPLATE_TOKENS = 7  # what the chat template adds to any prompt


@dataclass
class Tiny:
    """Options, and what it has seen. tokenize: offer /tokenize. stated: tell cached tokens in the usage. slots: requests served at once.

    broken_from: chat requests beyond so many get a 500.
    """

    context_tokens: int | None = 4000
    gap_s: float = 0.001
    prefill_s: float = 0.0
    tokenize: bool = True
    caching: bool = True
    stated: bool = True
    slots: int = 64
    ends_after: int | None = None
    broken_from: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=lambda: {"generation": 0, "prompt": 0, "hits": 0})
    running: int = 0
    waiting: int = 0
    _seen: list[list[str]] = field(default_factory=list)
    base_url: str = ""

    def prompt(self, messages: list[dict[str, Any]]) -> list[str]:
        """The prompt's tokens: the template's, then the words of all messages with their roles."""
        words = [f"t{i}" for i in range(TEMPLATE_TOKENS)]
        for at, message in enumerate(messages):
            words += ([f"<{message['role']}>"] if at else []) + str(message["content"]).split()
        return words

    def cached(self, prompt: list[str]) -> int:
        """Length of the longest prefix that an earlier prompt has too; the last token is always computed."""
        longest = 0
        for other in self._seen if self.caching else []:
            same = next((i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), min(len(prompt), len(other)))
            longest = max(longest, same)
        return min(longest, len(prompt) - 1)

    async def models(self, request: web.Request) -> web.Response:
        card = {"id": "tiny", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": self.context_tokens}
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, request: web.Request) -> web.Response:
        lines = [
            f"vllm:generation_tokens_total {self.totals['generation']}",
            f"vllm:prompt_tokens_total {self.totals['prompt']}",
            f"vllm:prefix_cache_hits_total {self.totals['hits']}",
            f"vllm:num_requests_running {self.running}",
            f"vllm:num_requests_waiting {self.waiting}",
            "vllm:num_preemptions_total 3",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def count(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"count": len(self.prompt(body["messages"])), "max_model_len": self.context_tokens})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.broken_from is not None and len(self.bodies) > self.broken_from:
            return web.Response(status=500, text="broken")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.waiting += 1
        async with self._free:
            self.waiting -= 1
            self.running += 1
            try:
                await answer.prepare(request)
                await self._answer(answer, body)
            finally:
                self.running -= 1
        return answer

    async def _answer(self, answer: web.StreamResponse, body: dict[str, Any]) -> None:
        prompt = self.prompt(body["messages"])
        cached = self.cached(prompt)
        self._seen.append(prompt)
        self.totals["prompt"] += len(prompt)
        self.totals["hits"] += cached
        await asyncio.sleep(self.prefill_s * (len(prompt) - cached))
        wanted = body["max_tokens"]
        made = wanted if self.ends_after is None else min(wanted, self.ends_after)
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": 0, "total_tokens": 0}
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.stated else {}
        for n in range(1, made + 1):
            self.totals["generation"] += 1
            await self._event(answer, [{"index": 0, "delta": {"content": f"w{n % 97} "}}], usage | {"completion_tokens": n})
            await asyncio.sleep(self.gap_s)
        reason = "length" if made == wanted else "stop"
        await self._event(answer, [{"index": 0, "delta": {}, "finish_reason": reason}], usage | {"completion_tokens": made})
        await self._event(answer, [], usage | {"completion_tokens": made} | details)
        await answer.write(b"data: [DONE]\n\n")

    async def _event(self, answer: web.StreamResponse, choices: list[dict[str, Any]], usage: dict[str, Any]) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": choices, "usage": usage}
        await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())

    async def start(self) -> web.AppRunner:
        self._free = asyncio.Semaphore(self.slots)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/chat/completions", self.chat)
        if self.tokenize:
            app.router.add_post("/tokenize", self.count)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


@contextlib.contextmanager
def serving(tiny: Tiny) -> Iterator[Tiny]:
    """Run it until the block is left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(tiny.start(), loop).result(10)
    try:
        yield tiny
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
