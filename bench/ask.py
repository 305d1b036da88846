"""`invoke ask`: one streamed request from the terminal. The answer goes to stdout as it comes, figures to stderr."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import sys
from pathlib import Path
from typing import Any, TextIO

from bench.errors import BadRequest, BenchError
from bench.measure import measure
from bench.openai_stream import stream
from bench.receipt import System
from bench.request import Deadlines, Request
from bench.run import find_target
from bench.trace import Trace

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Printer:
    """Writes deltas as they come. Reasoning is dimmed on a terminal and left out of a pipe, which wants the answer only."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.colour = out.isatty()
        self.kind = ""

    def __call__(self, kind: str, text: str) -> None:
        if kind == "k" and not self.colour:
            return
        if kind != self.kind and self.colour:
            self.out.write({"k": DIM, "c": PLAIN}.get(kind, "") if not self.kind or kind == "k" else f"{PLAIN}\n\n")
        self.kind = kind
        self.out.write(text)
        self.out.flush()

    def close(self) -> None:
        self.out.write(f"{PLAIN}\n" if self.colour else "\n")
        self.out.flush()


def content(text: str, image: Path | None) -> Any:
    """The message content: plain text, or text and the image as a data URL. Raises BadRequest for an unusable image file."""
    if image is None:
        return text
    kind = mimetypes.guess_type(image.name)[0]
    if not kind or not kind.startswith("image/"):
        raise BadRequest(f"--image {image}: not an image by its name (png, jpg, webp, gif)")
    try:
        data = base64.b64encode(image.read_bytes()).decode()
    except OSError as error:
        raise BadRequest(f"--image {image}: {error.strerror}") from error
    return [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}]


def ask(base_url: str, api_key: str | None, model: str | None, request: Request) -> Trace:
    """Send `request` (its model may be empty: the served one) and print the answer. Raises BenchError when it breaks off."""
    printer = Printer(sys.stdout)

    async def go() -> Trace:
        deadlines = Deadlines()
        target = await find_target(base_url, api_key, model, System(), deadlines)
        named = Request(target.model, request.content, request.max_tokens, request.temperature, request.top_p, request.thinking)
        return await stream(target.endpoint, named, deadlines, printer)

    trace = asyncio.run(go())
    printer.close()
    print(figures(trace), file=sys.stderr)
    if trace.error:
        raise BenchError(f"the answer broke off: {trace.error}\ntry: invoke status, invoke logs")
    return trace


def figures(trace: Trace) -> str:
    """One line: tokens, TTFT, rate, how it ended."""
    metrics = measure(trace)
    first = "-" if metrics.ttft_s is None else f"{metrics.ttft_s * 1000:.0f} ms"
    rate = "-" if metrics.decode_tok_s is None else f"{metrics.decode_tok_s:.1f} tok/s"
    tokens = "?" if metrics.n_tokens is None else metrics.n_tokens
    return f"[{tokens} tokens, TTFT {first}, decode {rate}, ended by {trace.finish_reason or trace.error}]"
