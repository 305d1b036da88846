"""docs/serving.md: what it says is run is run, on the local kit with a key; the rest is read as far as a machine without Sparks can."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from tests.cluster.support import ROOT
from tests.ports import free_port
from tests.serving import DOCUMENT, Example, examples, requests

TEXT = DOCUMENT.read_text()
EXAMPLES = examples(TEXT)
MODEL, KEY = "SmolLM2-135M-Instruct", "a-key-of-this-test"
# What each example that is run prints: (heading, which of those run under it) -> a pattern in its output.
PRINTED = {
    ("Address, model, key", 0): f'"id":"{MODEL}"',
    ("A request", 0): r'"finish_reason":"(stop|length)".*"completion_tokens":\d+',
    ("A request", 1): r"\n\d+ tokens\n$",
    ("Thinking", 0): r"^thoughts: None\nanswer: .",
    ("Structured output", 0): r"^.+ -?\d+\n$",
    ("The prefix cache", 0): r"^\d of 5\d\d prompt tokens were in the cache\n5\d\d of 5\d\d prompt tokens",
    ("Context and concurrency", 0): r"^400 .*8192",
}


def numbered() -> list[tuple[tuple[str, int], Example]]:
    """The examples that are run, each with its heading and its number under it."""
    found: list[tuple[tuple[str, int], Example]] = []
    for each in EXAMPLES:
        if each.run:
            found.append(((each.heading, sum(key[0] == each.heading for key, _ in found)), each))
    return found


RUN = numbered()


def test_every_example_says_whether_it_is_run() -> None:
    for each in EXAMPLES:
        assert each.before.startswith("Run here" if each.run else "Not run here"), each
    assert {key for key, _ in RUN} == set(PRINTED)
    assert len(EXAMPLES) == 12


@pytest.mark.parametrize("block", ["```sh\nls\n```", "```ruby run\nputs 1\n```", "```\nx\n```"])
def test_an_example_that_is_not_marked_is_refused(block: str) -> None:
    with pytest.raises(ValueError, match="needs a language and"):
        examples(f"## A heading\n\nText.\n\n{block}\n")


@pytest.mark.parametrize("each", [each for each in EXAMPLES if each.language == "python"], ids=lambda each: each.heading)
def test_python_compiles(each: Example) -> None:
    compile(each.text, each.heading, "exec")


@pytest.mark.parametrize("each", [each for each in EXAMPLES if each.language == "sh"], ids=lambda each: each.heading)
def test_shell_parses(each: Example) -> None:
    done = subprocess.run(["bash", "-n"], input=each.text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", requests(TEXT))
def test_a_request_has_only_keys_that_exist(text: str) -> None:
    """Those of OpenAI's API, and the one that vLLM adds; effort is a word that the checkpoint's template knows."""
    body = json.loads(text)
    assert set(body) <= {*CompletionCreateParamsBase.__annotations__, "chat_template_kwargs"}
    assert body.get("chat_template_kwargs", {}).get("reasoning_effort", "low") in ("low", "high", "max")
    assert body["model"] == "GLM-5.3-Flash-EXL3"


# On the local kit


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody who uses the server, with BASE, MODEL and KEY set."""
    port = str(free_port())
    own = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state")), "PORT": port, "KIT": "local", "VLLM_API_KEY": KEY}
    words = [sys.executable, "-m", "invoke"]
    started = subprocess.run([*words, "up"], cwd=ROOT, env=own, capture_output=True, text=True, timeout=150)
    assert started.returncode == 0, started.stderr
    yield {**os.environ, "BASE": f"http://127.0.0.1:{port}/v1", "MODEL": MODEL, "KEY": KEY, "CONTEXT": "8192"}
    stopped = subprocess.run([*words, "down"], cwd=ROOT, env=own, capture_output=True, text=True, timeout=60)
    assert stopped.returncode == 0, stopped.stderr


def run(each: Example, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    if each.language == "sh" and shutil.which("curl") is None:
        tell = pytest.fail if os.environ.get("CI") else pytest.skip
        tell("there is no curl to run the example with: apt-get install curl")
    file = folder / "example"
    file.write_text(each.text)
    words = [sys.executable, str(file)] if each.language == "python" else ["bash", "-e", str(file)]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.model
@pytest.mark.parametrize(("key", "each"), RUN, ids=[f"{heading} {number}" for (heading, number), _ in RUN])
def test_an_example_runs(key: tuple[str, int], each: Example, served: dict[str, str], tmp_path: Path) -> None:
    done = run(each, served, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(PRINTED[key], done.stdout, re.DOTALL), done.stdout


@pytest.mark.model
def test_without_the_key_it_is_refused(served: dict[str, str], tmp_path: Path) -> None:
    each = next(each for each in EXAMPLES if each.run)
    done = run(each, {**served, "KEY": "another"}, tmp_path)
    assert done.returncode == 22, done.stdout
    assert "401" in done.stderr


# What the local model cannot show: the request that the SDK makes of `extra_body`, and an answer with thoughts


class Thinker(BaseHTTPRequestHandler):
    """Answers every request as a model that thinks, and keeps what was asked."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        message = {"role": "assistant", "content": "97", "reasoning": "91 is 7 times 13"}
        told = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [{"index": 0, "message": message}]}
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def test_extra_body_is_unpacked_and_thoughts_are_read(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Own", (Thinker,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        each = next(each for each in EXAMPLES if each.run and each.heading == "Thinking")
        env = {**os.environ, "BASE": f"http://127.0.0.1:{server.server_port}/v1", "MODEL": MODEL, "KEY": KEY}
        done = run(each, env, tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert done.stdout == "thoughts: 91 is 7 times 13\nanswer: 97\n", done.stderr
    assert asked[0]["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert "extra_body" not in asked[0]
