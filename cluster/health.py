"""Is a server there, and does it work? Plain HTTP questions to one base URL, and the wait from start to ready."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster import metrics
from cluster.metrics import Reading

# A proxy from the environment must not stand between us and a server on this machine or its fabric.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_POLL_S = 0.5


@dataclass(frozen=True)
class Server:
    """Where a server listens and what it wants to see."""

    base_url: str
    model: str
    api_key: str | None = None


@dataclass(frozen=True)
class Engine:
    """Level three. `works`: it generated a token, or its counters move; `how` we know, in words; the last counters read."""

    works: bool
    how: str
    counters: Reading | None = None


def fetch(server: Server, path: str, body: Any = None, timeout_s: float = 5) -> tuple[int, str]:
    """Status and text of one request; status 0 and the reason when there was no answer."""
    headers = {"Content-Type": "application/json"}
    if server.api_key:
        headers["Authorization"] = f"Bearer {server.api_key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.base_url + path, data=data, headers=headers)
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))


def counters(server: Server, timeout_s: float = 5) -> Reading | None:
    """The server's counters; None when it does not offer any in time."""
    status, text = fetch(server, "/metrics", timeout_s=timeout_s)
    return metrics.parse(text) if status == 200 else None


def engine(server: Server, deadline_s: float = 20, before: Reading | None = None) -> Engine:
    """Whether the engine makes progress. A server with a dead engine often still answers /health.

    One token is asked for, unless requests run and the counters have moved since the reading `before`. On a busy server that request
    may have to wait: then moving counters are enough. Takes `deadline_s` at most, and 2 s where /metrics does not answer.
    """
    deadline = time.monotonic() + deadline_s
    begin = counters(server, min(5.0, deadline_s / 2))
    if begin and begin.running and metrics.moved(before, begin):
        return Engine(True, f"busy: {_load(begin)}, counters move", begin)
    asked, now = _Ask(server, max(0.0, deadline - time.monotonic()) + 5), begin
    while not asked.done.wait(min(_POLL_S, max(0.0, deadline - time.monotonic()))):
        now = counters(server, 2)
        if now and now.running and metrics.moved(begin, now):
            return Engine(True, f"busy: {_load(now)}, counters move", now)
        if time.monotonic() >= deadline:
            return Engine(False, f"one token was not generated within {deadline_s:g} s" + _flat(now), now)
    return asked.verdict(begin if asked.status == 200 else counters(server))


class _Ask:
    """A one-token request on its way, in a thread that nobody waits for: urllib's cannot be broken off."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self.status, self.text, self.done = 0, "", threading.Event()
        self._begin = time.monotonic()
        self._took_s = 0.0
        body = {"model": server.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        threading.Thread(target=self._run, args=(server, body, timeout_s), daemon=True).start()

    def _run(self, server: Server, body: Any, timeout_s: float) -> None:
        self.status, self.text = fetch(server, "/v1/completions", body, timeout_s)
        self._took_s = time.monotonic() - self._begin
        self.done.set()

    def verdict(self, now: Reading | None) -> Engine:
        if self.status == 200 and '"choices"' in self.text:
            return Engine(True, f"one token in {self._took_s:.2f} s", now)
        if self.status == 429:
            return Engine(True, "busy: it takes no further requests (429)", now)
        said = f"status {self.status}: {self.text.strip()[:200]}" if self.status else self.text
        return Engine(False, f"one token was refused: {said}" + _flat(now), now)


def _load(now: Reading) -> str:
    return f"{now.running or 0:.0f} requests running, {now.waiting or 0:.0f} waiting"


def _flat(now: Reading | None) -> str:
    if now is None:
        return "; /metrics does not answer either"
    if now.running:
        return f"; {_load(now)}, and no counter moves"
    return f"; {now.waiting:.0f} requests wait and none runs" if now.waiting else ""


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether `condition` became true within `timeout_s` of wall-clock time. It may raise to give up early."""
    deadline = time.monotonic() + timeout_s
    while True:
        if condition():
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
