"""The scripted server of the test suite as a separate process: a server whose every send is known. For `bench.accuracy` and
`bench.peers`; it is spoken to by command line, scenario file and log only, so a source checkout is needed and nothing is imported.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from bench.errors import BenchError

ROOT = Path(__file__).resolve().parent.parent
UsageMode = Literal["per-chunk", "final", "none"]
_START_S = 30.0
_WORD = "tok "


@dataclass(frozen=True)
class Script:
    """One reply, given to every request: `tokens` in chunks of `per_chunk`, the first after first_s, then one chunk each gap_s."""

    tokens: int
    per_chunk: int = 1
    gap_s: float = 0.01
    first_s: float = 0.1
    usage: UsageMode = "per-chunk"
    token_ids: bool = False
    prompt_tokens: int = 10
    word: str = _WORD

    def steps(self) -> list[dict[str, Any]]:
        running = {"usage": "auto"} if self.usage == "per-chunk" else {}
        steps: list[dict[str, Any]] = [{"kind": "role", **running}]
        for start in range(0, self.tokens, self.per_chunk):
            size = min(self.per_chunk, self.tokens - start)
            ids = {"token_ids": list(range(100 + start, 100 + start + size))} if self.token_ids else {}
            steps.append({"kind": "wait", "s": self.gap_s if start else self.first_s})
            steps.append({"kind": "content", "text": self.word * size, "tokens": size, **running, **ids})
        usage = [] if self.usage == "none" else [{"kind": "usage"}]
        return [*steps, {"kind": "finish", "reason": "length", **running}, *usage, {"kind": "done"}]

    def scenario(self) -> dict[str, Any]:
        return {"replies": [{"steps": self.steps(), "prompt_tokens": self.prompt_tokens}], "any_model": True, "max_model_len": 1 << 20}


@dataclass(frozen=True)
class Sent:
    """One request as the server saw it, CLOCK_MONOTONIC ns: when its last byte was read, and (sent, due, cumulative tokens) of each
    chunk that held tokens. outcome: complete, cut, client_gone, stopped; None: still running. came_ns: when its last byte had come, by
    the kernel's stamp; None: the same."""

    received_ns: int
    chunks: tuple[tuple[int, int, int], ...]
    outcome: str | None
    asks_usage: bool
    came_ns: int | None = None

    @property
    def asked_ns(self) -> int:
        """Where the time of its answer begins: how late the server read it is part of that, and no client's doing."""
        return self.received_ns if self.came_ns is None else self.came_ns


class ScriptedServer:
    """`with ScriptedServer(script) as server:` runs the reply in a child pinned to `core` (None: anywhere). Raises BenchError."""

    def __init__(self, script: Script, core: int | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scripted-")
        self._path = Path(self._folder.name)
        (self._path / "scenario.json").write_text(json.dumps(script.scenario()))
        argv = [sys.executable, "-m", "tests.fakes.sse_server", "--scenario", str(self._path / "scenario.json"), "--port", "0"]
        argv += ["--log", str(self._path), "--until-stdin-closes"]
        with (self._path / "stderr").open("wb") as stderr:
            self._child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        words = self._line().split()
        if len(words) != 2 or words[0] != b"listening":
            self.close()
            raise BenchError(f"the scripted server did not start; ran: {' '.join(argv)}\ntry: run this from a source checkout, with ./lab")
        self.base_url = f"http://127.0.0.1:{int(words[1])}"
        if core is not None:
            os.sched_setaffinity(self._child.pid, {core})

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout:
            self._child.stdout.close()
        self._folder.cleanup()

    def chats(self) -> list[Sent]:
        """Every chat request so far that began a stream, in order of arrival."""
        assert self._child.stdin
        self._child.stdin.write(b"\n")
        self._child.stdin.flush()
        self._line()
        chunks: dict[int, list[tuple[int, int, int]]] = {}
        seen = 0
        for row in self._rows("sent.jsonl"):
            held = chunks.setdefault(row["request"], [])
            seen = held[-1][2] if held else 0
            if row["tokens"] > seen:
                held.append((row["t_sent_ns"], row["due_ns"], row["tokens"]))
        ended = {row["request"]: row["outcome"] for row in self._rows("ended.jsonl")}
        return [_sent(row, chunks.get(row["index"], []), ended) for row in self._rows("requests.jsonl") if row["index"] in chunks]

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _line(self) -> bytes:
        assert self._child.stdout
        ready, _, _ = select.select([self._child.stdout], [], [], _START_S)
        return self._child.stdout.readline() if ready else b""


def _sent(row: dict[str, Any], chunks: list[tuple[int, int, int]], ended: dict[int, str]) -> Sent:
    body = row["body"] if isinstance(row["body"], dict) else {}
    asks = bool((body.get("stream_options") or {}).get("include_usage"))
    return Sent(row["t_received_ns"], tuple(chunks), ended.get(row["index"]), asks, row["t_came_ns"])
