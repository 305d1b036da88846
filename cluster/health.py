"""Is a server there, and does it work? Plain HTTP questions to one base URL, and the wait from start to ready."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A proxy from the environment must not stand between us and a server on this machine or its fabric.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Server:
    """Where a server listens and what it wants to see."""

    base_url: str
    model: str
    api_key: str | None = None


def _fetch(server: Server, path: str, body: Any = None, timeout_s: float = 5) -> tuple[int, str]:
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


def engine_answers(server: Server, timeout_s: float = 20) -> bool:
    """Level 3: one token can be generated. A server with a dead engine often still answers /health."""
    body = {"model": server.model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    status, text = _fetch(server, "/v1/completions", body, timeout_s)
    return status == 200 and '"choices"' in text


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.05) -> bool:
    """Whether `condition` became true within `timeout_s` of wall-clock time. It may raise to give up early."""
    deadline = time.monotonic() + timeout_s
    while True:
        if condition():
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
