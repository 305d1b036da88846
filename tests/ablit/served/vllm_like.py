"""A server with the routes of vLLM that a served sweep asks: what it says is fixed, but for one knob that an edit turns.

Every prompt position and every first answer token has the same distribution: tokens 1, 2, 3 with 0.5, 0.3, 0.1 and 0.1 for all others;
edited, 0.45, 0.35, 0.1. From one to the other the KLD is 0.5 ln(0.5/0.45) + 0.3 ln(0.3/0.35) = 0.0064351 nats, the total variation 0.05.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STOCK, EDITED = (0.5, 0.3, 0.1), (0.45, 0.35, 0.1)
KLD, TV = 0.0064351, 0.05


@dataclass
class Script:
    """`edited`: what the server serves now. `say`: prompt -> (answer, ended). `hook`: called with each request's path, before the answer.
    logprobs False: chat answers come without. asked: path and body of every POST."""

    edited: bool = False
    say: Callable[[str], tuple[str, bool]] = lambda prompt: ("Yes, it is so.", True)
    hook: Callable[[str], None] = lambda path: None
    logprobs: bool = True
    drafts: int = 0
    asked: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def shares(self) -> tuple[float, ...]:
        return EDITED if self.edited else STOCK

    def get(self, path: str) -> str:
        if path == "/v1/models":
            return json.dumps({"data": [{"id": "tiny", "owned_by": "vllm"}]})
        done = self.drafts
        lines = [f"vllm:spec_decode_num_drafts_total {done}", f"vllm:spec_decode_num_draft_tokens_total {2 * done}"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total {done}", "vllm:generation_tokens_total 0"]
        lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {done}'] if done else []
        return "\n".join(lines)

    def post(self, path: str, body: Any) -> Any:
        self.asked.append((path, body))
        self.hook(path)
        if path == "/tokenize":
            return {"tokens": list(body["prompt"].encode())}
        if path == "/v1/completions":
            rows = [None, *([self._row()] * (len(body["prompt"]) - 1))]
            return {"choices": [{"prompt_logprobs": rows}]}
        self.drafts += 4
        return self._chat(body)

    def _row(self) -> dict[str, dict[str, float]]:
        return {str(rank): {"logprob": math.log(share), "rank": rank} for rank, share in enumerate(self.shares, 1)}

    def _chat(self, body: Any) -> Any:
        text, ended = self.say(body["messages"][0]["content"])
        best = [{"token": f"token_id:{rank}", "logprob": math.log(share)} for rank, share in enumerate(self.shares, 1)]
        logprobs = {"content": [{"token": "token_id:1", "logprob": best[0]["logprob"], "top_logprobs": best}]}
        choice = {"message": {"content": text}, "finish_reason": "stop" if ended else "length"}
        return {"choices": [{**choice, "logprobs": logprobs if self.logprobs else None}], "usage": {"completion_tokens": 0}}


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The script on a port of 127.0.0.1; its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(script.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                self._send(json.dumps(script.post(self.path, body)))
            except ConnectionError as error:
                self._send(json.dumps({"error": {"message": str(error)}}), 500)

        def _send(self, text: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
