"""why-slow --live on the real local model, alone and with somebody else on the server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RECEIPT = ROOT / "results" / "receipts" / "20261129-local-prose-dcfa373df256.json"
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")), "PORT": str(port), "KIT": "local"}
    subprocess.run([sys.executable, "-m", "invoke", "up"], cwd=ROOT, env=env, check=True, capture_output=True, timeout=100)
    yield env
    subprocess.run([sys.executable, "-m", "invoke", "down"], cwd=ROOT, env=env, check=True, capture_output=True, timeout=60)


def look(env: dict[str, str]) -> Any:
    words = ["why-slow", str(RECEIPT), "--live", "--json"]
    done = subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr  # the local kit has no published figure
    return json.loads(done.stdout)


def test_alone(env: dict[str, str]) -> None:
    found = look(env)
    assert (found["live"]["running"], found["live"]["foreign_tokens"]) == (0, 0)
    assert "other-traffic-now" not in [cause["id"] for cause in found["diagnosis"]["causes"]]


OTHER = """
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "Describe a river at length."}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
wanted = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json"})
for line in urllib.request.urlopen(wanted):
    pass
"""


def test_somebody_else_is_named(env: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{env['PORT']}/v1/chat/completions"
    other = subprocess.Popen([sys.executable, "-c", OTHER, url])
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and "requests_processing 1" not in _metrics(env):
            time.sleep(0.1)
        causes = look(env)["diagnosis"]["causes"]
        assert causes[0]["id"] == "other-traffic-now"
        assert "now 1 other requests run" in causes[0]["what"]
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()


def _metrics(env: dict[str, str]) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{env['PORT']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
