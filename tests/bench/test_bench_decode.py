"""The whole measurement against a scripted server: exit codes, receipts, and what is sent."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import workload
from bench.bench_decode import main
from bench.check import check
from bench.receipt import Receipt
from tests.bench.scripted import MEASURED, SOUND, scenario
from tests.fakes.builders import server_error, text_reply, uniform
from tests.fakes.records import RequestRecord
from tests.fakes.script import Content, Cut, Done, Finish, Reply, Role, Scenario, Stall, Usage
from tests.fakes.sse_server import ScriptedServer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "API_KEY", "GLM53_BENCH_BASE"):
        monkeypatch.delenv(name, raising=False)


def measure(server: ScriptedServer, out: Path, *args: str) -> int:
    return main(["--base-url", server.base_url, "--out", str(out), "--runs", "2", *args])


def only(folder: Path) -> Receipt:
    files = list(folder.glob("*.json"))
    assert len(files) == 1
    return check(files[0])


def chats(server: ScriptedServer) -> list[str]:
    posts: list[RequestRecord] = [request for request in server.requests() if request.method == "POST"]
    return [_text(request.body) for request in posts]


def _text(body: Any) -> str:
    return str(body["messages"][-1]["content"])


@pytest.mark.parametrize("dialect", ["vllm", "llamacpp"])
def test_a_valid_measurement(tmp_path: Path, dialect: str) -> None:
    with ScriptedServer(scenario(metrics=dialect)) as server:
        assert measure(server, tmp_path) == 0
        sent = chats(server)
    receipt = only(tmp_path)
    assert receipt.valid
    assert receipt.protocol.dialect == dialect
    summary = receipt.summary
    assert summary.decode_tok_s is not None
    assert summary.decode_tok_s.median == pytest.approx(400, rel=0.1)
    assert summary.tokens == 40
    assert summary.acceptance is not None
    # twice 8 drafts, 24 draft tokens, 12 accepted
    assert (summary.acceptance.drafts, summary.acceptance.acceptance_rate, summary.acceptance.acceptance_length) == (16, 0.5, 2.5)
    assert summary.acceptance.per_position == (1.0, 0.375, 0.125)
    assert all(run.isolation.held for run in receipt.runs)
    # warm-up, three probes, two runs, each with a salt of its own
    assert len(sent) == 6
    prompt = workload.load("prose").prompts[0].text
    assert [prompt in text for text in sent] == [False] * 4 + [True] * 2
    assert sent[4] != sent[5]
    assert [run.salt for run in receipt.runs] == [sent[4][1:9], sent[5][1:9]]


def test_flags_of_the_public_script(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    with ScriptedServer(scenario()) as server:
        code = main(
            ["--base-url", server.base_url, "--structured", "--runs", "1", "--max-tokens", "33", "--skip-coherence", "--out", str(out)]
        )
        bodies = [request.body for request in server.requests() if request.method == "POST"]
    assert code == 0
    receipt = check(out)
    assert (receipt.protocol.phase, receipt.protocol.max_tokens, receipt.coherence) == ("structured", 33, None)
    assert len(bodies) == 2  # warm-up and one run, no probes
    assert isinstance(bodies[1], dict)
    assert (bodies[1]["max_tokens"], bodies[1]["temperature"], bodies[1]["stream"]) == (33, 0.0, True)
    assert bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_keeping_the_prefix_cache_sends_the_same_prompt(tmp_path: Path) -> None:
    with ScriptedServer(scenario()) as server:
        assert measure(server, tmp_path, "--keep-prefix-cache") == 0
        sent = chats(server)
    assert sent[4] == sent[5] == workload.load("prose").prompts[0].text
    assert not only(tmp_path).protocol.salted


def test_without_metrics_isolation_is_unknown_and_the_receipt_valid(tmp_path: Path) -> None:
    with ScriptedServer(scenario(metrics=None)) as server:
        assert measure(server, tmp_path) == 0
    receipt = only(tmp_path)
    assert [run.isolation.held for run in receipt.runs] == [None, None]
    assert receipt.summary.acceptance is None


INVALID = {
    "500": (server_error(), "HTTP 500"),
    "cut": (Reply([Role(), Content("a"), Cut("reset")]), "broken off"),
    "no-usage": (Reply(uniform(10, usage="none")), "no usage"),
    "stall": (Reply([Role(), Content("a"), Stall()]), "stalled"),
    "foreign-tokens": (Reply(uniform(10, usage="per-chunk"), foreign_tokens=7), "somebody else used it"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_measurement_is_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    reply, reason = INVALID[name]
    with ScriptedServer(scenario(MEASURED, reply)) as server:
        assert measure(server, tmp_path, "--stall-timeout", "0.5") == 3
    receipt = only(tmp_path / "invalid")
    assert not receipt.valid
    assert reason in receipt.invalid_because[0]
    assert receipt.invalid_because[0].startswith("run 1:")
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


def test_a_named_receipt_is_not_overwritten_by_an_invalid_one(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    out.write_text("precious")
    with ScriptedServer(scenario(server_error())) as server:
        assert main(["--base-url", server.base_url, "--out", str(out), "--runs", "1"]) == 3
    assert out.read_text() == "precious"
    assert (tmp_path / "invalid" / "mine.json").exists()


def test_a_busy_server_is_no_place_to_measure(tmp_path: Path) -> None:
    with ScriptedServer(scenario(initial_running=1)) as server:
        assert measure(server, tmp_path) == 3
    assert "other requests ran" in only(tmp_path / "invalid").invalid_because[0]


def test_incoherence_fails_the_gate_but_the_figures_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [text_reply("Lyon.", when="capital city of France"), *(reply for reply in SOUND if reply.when != "capital city of France")]
    with ScriptedServer(scenario(others=wrong)) as server:
        assert measure(server, tmp_path) == 1
    assert only(tmp_path).failed_gates == ("coherence capital: wrong or garbled answer",)
    assert "failed gate: coherence capital" in capsys.readouterr().err


def test_nan_in_the_answer_fails_the_gate_and_finance_does_not(tmp_path: Path) -> None:
    answers = [Reply([Role(), Content(text, 3), Finish("length"), Usage(), Done()]) for text in ("finance and nanoseconds", "nan nan nan")]
    with ScriptedServer(scenario(*answers)) as server:
        assert measure(server, tmp_path) == 1
    assert only(tmp_path).failed_gates == ("run 1: nan",)


REFUSED = {
    "model": (Scenario([MEASURED]), ["--model", "other"], 2, "model 'other' is not served here; served: test-model"),
    "two-models": (Scenario([MEASURED], models=("a", "b")), [], 2, "several models: a, b"),
    "401": (Scenario([MEASURED], api_key="k"), [], 2, "refuses the API key (401)"),
    "warm-up-500": (Scenario([server_error()]), [], 1, "warm-up request failed: HTTP 500"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    script, args, code, message = REFUSED[name]
    with ScriptedServer(script) as server:
        assert measure(server, tmp_path, *args) == code
    complaint = capsys.readouterr().err
    assert message in complaint
    assert "try:" in complaint
    assert "Traceback" not in complaint
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("variable", ["VLLM_API_KEY", "API_KEY"])
def test_the_key_from_the_environment_is_used_and_stored_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "k3y-0f-the-server")
    with ScriptedServer(scenario(api_key="k3y-0f-the-server")) as server:
        assert measure(server, tmp_path) == 0
    assert "k3y-0f-the-server" not in next(tmp_path.glob("*.json")).read_text()


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("http://127.0.0.1:1", 1, "no server answers at http://127.0.0.1:1"),
        ("http://no-such-host.invalid:80", 1, "no server answers"),
        ("127.0.0.1:8000", 2, "is no URL"),
        ("ftp://x", 2, "is no URL"),
    ],
)
def test_wrong_url(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, code: int, message: str) -> None:
    assert main(["--base-url", url, "--out", str(tmp_path)]) == code
    assert message in capsys.readouterr().err


def test_a_path_under_the_api_and_v1_in_the_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(scenario()) as server:
        assert main(["--base-url", server.base_url + "/v1/", "--out", str(tmp_path), "--runs", "1"]) == 0
        assert main(["--base-url", server.base_url + "/nowhere", "--out", str(tmp_path)]) == 2
    assert "does not exist (404)" in capsys.readouterr().err


def test_a_web_server_that_is_no_api(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "models").write_text("<html>hello</html>")
    web = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert web.stdout is not None
        port = web.stdout.readline().split("port ")[1].split()[0]
        assert main(["--base-url", f"http://127.0.0.1:{port}", "--out", str(tmp_path)]) == 2
    finally:
        web.kill()
        web.communicate()
    assert "no OpenAI-compatible API" in capsys.readouterr().err


def test_an_unwritable_place_is_found_before_anything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with ScriptedServer(scenario()) as server:
        assert measure(server, tmp_path / "file" / "sub") == 2
        assert server.requests() == []
    assert "receipts cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["probe", "run"])
def test_ctrl_c_leaves_a_partial_receipt_marked_invalid(tmp_path: Path, where: str) -> None:
    slow = Reply([Role(), *[Content("x")] * 3, Stall()])
    stalled = [Reply([Role(), Stall()], when="clear sky"), *SOUND[:3]] if where == "probe" else SOUND
    with ScriptedServer(scenario(MEASURED, slow, others=stalled)) as server:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "bench_decode.py"), "--base-url", server.base_url, "--out", str(tmp_path), "--runs", "3"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        _wait_for_chats(server, 4 if where == "probe" else 6)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 3
    assert "Traceback" not in err
    receipt = only(tmp_path / "invalid")
    assert [run.trace.error for run in receipt.runs] == ([] if where == "probe" else [None, "interrupted"])
    expected = "only 0 of 3 runs were made" if where == "probe" else "run 1: interrupted"
    assert receipt.invalid_because[0] == expected


def _wait_for_chats(server: ScriptedServer, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(chats(server)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)


def test_the_system_python_without_the_packages_is_told_what_to_run() -> None:
    done = subprocess.run([sys.executable, "-S", str(ROOT / "bench" / "bench_decode.py")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "is not installed for this Python" in done.stderr
    assert "./lab bench" in done.stderr


def test_receipt_is_json_with_one_key_per_line(tmp_path: Path) -> None:
    with ScriptedServer(scenario()) as server:
        measure(server, tmp_path)
    text = next(tmp_path.glob("*.json")).read_text()
    assert json.loads(text)["receipt"] == "spark-lab/receipt/v1"
    assert [line.split('"')[1] for line in text.splitlines()[1:-1]] == sorted(Receipt.model_fields)


def test_a_finish_without_tokens_is_an_empty_answer(tmp_path: Path) -> None:
    with ScriptedServer(scenario(Reply([Role(), Finish("stop")]))) as server:
        assert measure(server, tmp_path) == 3
