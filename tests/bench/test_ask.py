"""`invoke ask` against a scripted server, as a user runs it: a subprocess with pipes, and once on a pseudo-terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bench.ask import content
from bench.errors import BadRequest
from tests.fakes.builders import server_error, text_reply, uniform
from tests.fakes.script import Content, Done, Finish, Reasoning, Reply, Role, Scenario, Usage, Wait
from tests.fakes.sse_server import ScriptedServer

ROOT = Path(__file__).parents[2]
THINKING = Reply([Role(), Reasoning("let me think"), Wait(0.05), Content("Forty"), Content("-two."), Finish(), Usage(), Done()])


def invoke(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *args], cwd=ROOT, capture_output=True, text=True)


def test_answer_on_stdout_figures_on_stderr() -> None:
    with ScriptedServer(Scenario([THINKING])) as server:
        done = invoke("ask", "what", "is it?", "--base-url", server.base_url, "--thinking", "high")
        body = server.requests()[-1].body
    assert (done.returncode, done.stdout) == (0, "Forty-two.\n")
    assert "3 tokens, TTFT" in done.stderr
    assert isinstance(body, dict)
    assert body["messages"] == [{"role": "user", "content": "what is it?"}]
    assert body["reasoning_effort"] == "high"


def test_reasoning_is_dimmed_on_a_terminal() -> None:
    with ScriptedServer(Scenario([THINKING])) as server:
        leader, follower = pty.openpty()
        child = subprocess.Popen(
            [sys.executable, "-m", "invoke", "ask", "x", "--base-url", server.base_url],
            cwd=ROOT, stdout=follower, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        child.wait(timeout=30)
        shown = os.read(leader, 10000).decode()
        os.close(leader)
        os.close(follower)
    assert "\x1b[2mlet me think\x1b[0m" in shown
    assert shown.index("Forty-two.") > shown.index("think")


def test_it_streams_as_it_comes_and_survives_a_closed_pipe() -> None:
    steps = [Role(), Content("first "), Wait(1.0), *uniform(2000, gap_s=0.002)]
    with ScriptedServer(Scenario([Reply(steps)])) as server:
        child = subprocess.Popen(
            [sys.executable, "-m", "invoke", "ask", "x", "--base-url", server.base_url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        assert os.read(child.stdout.fileno(), 100) == b"first "  # long before the answer ends
        child.stdout.close()
        assert child.wait(timeout=30) == 0
        complaints = child.stderr.read().decode()
        child.stderr.close()
    assert complaints == ""


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["ask"], 2, "no text"),
        (["ask", "  "], 2, "no text"),
        (["ask", "x", "--thinking", "maybe"], 2, "--thinking is 'maybe'; allowed: on, off, low, high"),
        (["ask", "x", "--image", "nowhere.png"], 2, "nowhere.png: No such file"),
        (["ask", "x", "--max-tokens", "0"], 2, "--max-tokens is 0"),
        (["ask", "x", "--base-url", "http://127.0.0.1:1"], 1, "no server answers"),
    ],
)
def test_bad_input(args: list[str], code: int, message: str) -> None:
    done = invoke(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_answer_is_said(tmp_path: Path) -> None:
    with ScriptedServer(Scenario([server_error()])) as server:
        done = invoke("ask", "x", "--base-url", server.base_url)
    assert done.returncode == 1
    assert "the answer broke off: HTTP 500" in done.stderr


def test_nothing_running_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "ask", "x"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "kit local is not running" in done.stderr
    assert "try: invoke up" in done.stderr


def test_image_becomes_a_data_url(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert content("what?", tmp_path / "a.png") == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]
    with pytest.raises(BadRequest, match="not an image by its name"):
        content("what?", tmp_path / "a.txt")


def test_plain_text_stays_plain() -> None:
    assert content("hi", None) == "hi"
    assert text_reply("hi").tokens == 1
