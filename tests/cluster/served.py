"""A server with the two faces that matter here: /metrics as scripted, and completions that come, wait or are refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cluster.health import Server


@dataclass
class Script:
    """`metrics`: number of the reading -> text. `wait_s` before a completion. `answers`: one chat text each, the last for ever."""

    metrics: Callable[[int], str] = lambda number: ""
    status: int = 200
    wait_s: float = 0.0
    answers: tuple[str, ...] = ("ok",)
    tokens: int = 9
    readings: int = 0
    asked: list[Any] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    """The script on a port of 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.readings += 1
            self._send(200, script.metrics(script.readings) if self.path == "/metrics" else "")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script.asked.append(body)
            script.closing.wait(script.wait_s)
            text = script.answers[min(len(script.asked), len(script.answers)) - 1]
            message = {"role": "assistant", "content": text, "reasoning": None}
            plain = {"choices": [{"message": message, "text": text}], "usage": {"completion_tokens": script.tokens}}
            self._send(script.status, json.dumps(plain))

        def _send(self, status: int, text: str) -> None:
            data = text.encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # the client no longer waits

        def log_message(self, format: str, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{httpd.server_address[1]}", "m")
    finally:
        script.closing.set()
        httpd.shutdown()
        thread.join()
        time.sleep(0.05)
        httpd.server_close()


def vllm(generation: int = 0, running: int = 0, waiting: int = 0, kv: float = 0.0, more: str = "") -> str:
    """A reading in vLLM's names."""
    label = '{engine="0",model_name="m"}'
    return (
        f"# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total{label} {generation}.0\n"
        f"vllm:num_requests_running{label} {running}.0\nvllm:num_requests_waiting{label} {waiting}.0\n"
        f"vllm:kv_cache_usage_perc{label} {kv}\n{more}"
    )
