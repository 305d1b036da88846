"""Capture over HTTP against a server that speaks vLLM 0.32's recorded shapes; the real one is in tests/lab/kld."""

import http.server
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kld import capture, served
from bench.kld.windows import Panel, Text, Window

PANEL = Panel("small", (Text("a", "abcdefghijkl", 2, "MIT", "1"), Text("b", "mnopqrstuvwx", 2, "MIT", "2")))


def row(token: int, k: int) -> dict[str, Any]:
    """What vLLM answers for a position whose prompt token is `token`: the k most likely (ids 1..k with 1/2, 1/4, ...), and the token."""
    ranks = {str(i): {"logprob": math.log(0.5**i), "rank": i, "decoded_token": "x"} for i in range(1, k + 1)}
    return {str(token): {"logprob": -11.5, "rank": 2923, "decoded_token": "y"}} | ranks


class Scripted(http.server.BaseHTTPRequestHandler):
    """fail_after: answers of /v1/completions before it fails with 500; change: alters an answer's prompt_logprobs."""

    def answer(self, code: int, plain: Any) -> None:
        body = json.dumps(plain).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) + self.server.missing))  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": name} for name in self.server.models]})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            assert body["add_special_tokens"] is False
            return self.answer(200, {"tokens": [ord(letter) for letter in body["prompt"]]} if server.tokenizes else {"count": 3})
        server.asked.append(body)
        if len(server.asked) > server.fail_after:
            return self.answer(500, {"error": {"message": "engine is dead"}})
        if body["prompt_logprobs"] > 20:
            return self.answer(400, {"error": {"message": "Requested prompt logprobs of 21, which is greater than max allowed: 20"}})
        rows = [None, *(row(token, body["prompt_logprobs"]) for token in body["prompt"][1:])]
        return self.answer(200, {"choices": [{"prompt_logprobs": server.change(rows)}]})

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    found.models, found.tokenizes, found.asked, found.fail_after, found.change = ["tiny"], True, [], 99, lambda rows: rows
    found.missing = 0
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def question(server: Any, **more: Any) -> served.Question:
    return served.Question(f"http://127.0.0.1:{server.server_port}/v1", **{"k": 3, "positions": 4, **more})


def take(server: Any, out: Path, **more: Any) -> tuple[capture.Capture, list[str]]:
    said: list[str] = []
    return served.capture(question(server, **more), out, said.append, PANEL), said


def test_every_position_of_every_window(server: Any, tmp_path: Path) -> None:
    made, said = take(server, tmp_path / "x.npz", edit="alpha 1", dtype="bfloat16")
    assert [body["prompt"] for body in server.asked][:2] == [[97, 98, 99, 100, 101], [102, 103, 104, 105, 106]]
    assert {(body["model"], body["max_tokens"], body["temperature"], body["prompt_logprobs"]) for body in server.asked} == {
        ("tiny", 1, 0, 3)
    }
    assert made.arrays["ids"].shape == (4, 4, 3)
    assert (made.arrays["ids"] == [1, 2, 3]).all()
    assert np.exp(made.arrays["logprobs"][3, 3]) == pytest.approx([0.5, 0.25, 0.125])
    assert (made.meta.support, made.meta.k, made.meta.source, made.meta.edit, made.meta.dtype) == (
        "top-k",
        3,
        "served",
        "alpha 1",
        "bfloat16",
    )
    assert said[-1] == "window 4 of 4: b-1"
    assert capture.read(tmp_path / "x.npz").seal == made.seal
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_a_server_that_dies_in_the_middle_of_an_answer(server: Any, tmp_path: Path) -> None:
    server.missing = 5
    with pytest.raises(BenchError, match=r"no usable answer: .*\ntry: again; finished windows are kept"):
        take(server, tmp_path / "x.npz")


def test_goes_on_where_it_stopped(server: Any, tmp_path: Path) -> None:
    server.fail_after = 2
    with pytest.raises(BenchError, match="HTTP 500: engine is dead"):
        take(server, tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()
    server.fail_after = 99
    _, said = take(server, tmp_path / "x.npz")
    assert said == ["window 3 of 4: b-0", "window 4 of 4: b-1"]
    assert len(server.asked) == 5  # two, the one that failed, two


def test_does_not_go_on_with_another_question(server: Any, tmp_path: Path) -> None:
    server.fail_after = 1
    with pytest.raises(BenchError, match="HTTP 500"):
        take(server, tmp_path / "x.npz")
    with pytest.raises(BadRequest, match=r"x\.npz\.parts holds the windows of another, unfinished capture"):
        take(server, tmp_path / "x.npz", edit="alpha 2")


def test_refusals_of_the_server(server: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"greater than max allowed: 20\ntry: a smaller --top-k"):
        take(server, tmp_path / "x.npz", k=21)
    with pytest.raises(BadRequest, match="serves tiny, not large"):
        take(server, tmp_path / "x.npz", model="large")
    server.models = ["tiny", "lora"]
    with pytest.raises(BadRequest, match="serves tiny, lora, not one alone"):
        take(server, tmp_path / "x.npz")
    server.models, server.tokenizes = ["tiny"], False
    with pytest.raises(BadRequest, match="no /tokenize"):
        take(server, tmp_path / "x.npz")


WINDOW = Window("a-0", "a", (5, 6, 7))
GOOD = [None, row(6, 2), row(7, 2)]


def test_the_prompts_own_token_is_left_out() -> None:
    assert served.parsed(GOOD, WINDOW, 2)["id"].tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (GOOD[:2], "2 rows for 3 tokens"),
        ([row(5, 2), row(6, 2), row(7, 2)], "did the server add or drop tokens"),
        ([None, row(6, 2), None], "position 1: not"),
        ([None, row(6, 2), {"7": {"logprob": -1.0}}], "position 1: not"),
        ([None, row(6, 1), row(7, 2)], "position 0: not the 2 most likely"),
        ([None, {"1": {"logprob": -0.1, "rank": 1}, "2": {"logprob": float("-inf"), "rank": 2}}, row(7, 2)], "finite log-probabilities"),
    ],
)
def test_other_shapes_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(InvalidMeasurement, match=message):
        served.parsed(rows, WINDOW, 2)


def test_an_answer_without_the_field_is_refused(server: Any, tmp_path: Path) -> None:
    server.change = lambda rows: None
    with pytest.raises(InvalidMeasurement, match="answered without prompt_logprobs"):
        take(server, tmp_path / "x.npz")
