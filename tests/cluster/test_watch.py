"""watch, stalls and the canary on the real local model, called as a user calls them."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests.cluster.support import Lab, eventually, session
from tests.ports import free_port

pytestmark = pytest.mark.model

FAST = {"WATCH_STRIKES": "2"}
WITHIN_S = 40.0  # --interval 1, two strikes: 1 + 5 + 5 s as the watch says; the cores may be shared


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, free_port())
    yield lab
    assert lab.run("down").returncode == 0


def _pass_on(lines: Iterable[str], events: "Queue[dict[str, Any]]") -> None:
    for line in lines:
        events.put(json.loads(line))


@contextlib.contextmanager
def watching(lab: Lab, *words: str, **changes: str) -> Iterator["Queue[dict[str, Any]]"]:
    """`invoke watch --json`; its events as they come."""
    events: Queue[dict[str, Any]] = Queue()
    with lab.begin("watch", "--json", "--interval", "1", *words, **FAST, **changes) as process:
        out, err = process.stdout, process.stderr
        assert out
        assert err
        assert "watching kit local every 1 s, a failure is 2 bad looks in a row: " in next(err)
        readers = [threading.Thread(target=_pass_on, args=(out, events)), threading.Thread(target=err.read)]
        for reader in readers:
            reader.start()
        try:
            yield events
        finally:
            os.killpg(process.pid, signal.SIGINT)
            for reader in readers:
                reader.join(30)
    assert process.returncode == 1


def until(events: "Queue[dict[str, Any]]", event: str) -> dict[str, Any]:
    while True:
        found = events.get(timeout=WITHIN_S)
        if found["event"] == event:
            return found


def test_watch_once(lab: Lab) -> None:
    stopped = lab.run("watch", "--once")
    assert (stopped.returncode, stopped.stdout[9:]) == (1, "state: stopped\n")
    assert lab.run("up").returncode == 0
    ready = lab.run("watch", "--once")
    assert ready.returncode == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d state: ready\n", ready.stdout)


def test_frozen_server_is_told_and_recovers(lab: Lab) -> None:
    assert lab.run("up").returncode == 0
    with watching(lab) as events:
        until(events, "state")
        second = lab.run("watch")
        assert second.returncode == 1
        assert second.stderr.startswith("error: another watch looks after kit local (pid ")
        os.kill(lab.engine, signal.SIGSTOP)
        assert until(events, "failed")["state"] == "frozen"
        os.kill(lab.engine, signal.SIGCONT)
        assert until(events, "recovered")["state"] == "ready"
    kept = [json.loads(line) for line in (lab.state / "spark-lab/local/events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in kept] == ["state", "bad look 1 of 2", "failed", "recovered"]
    assert {event["kit"] for event in kept} == {"local"}


def test_without_restart_nothing_is_done(lab: Lab) -> None:
    assert lab.run("up").returncode == 0
    with watching(lab) as events:
        until(events, "state")
        os.kill(lab.engine, signal.SIGKILL)
        assert until(events, "failed")["detail"] == "killed by SIGKILL"
        assert events.empty()
    assert lab.run("status").stdout.startswith("kit local: crashed")


def test_restart_of_a_killed_server(lab: Lab) -> None:
    assert lab.run("up").returncode == 0
    boots = [lab.record["boot"]]
    with watching(lab, "--restart") as events:
        until(events, "state")
        os.kill(lab.engine, signal.SIGKILL)
        assert until(events, "restarting")["detail"] == "in 10 s"
        until(events, "restarted")
        assert until(events, "state")["state"] == "ready"
        boots.append(lab.record["boot"])
    assert len(set(boots)) == 2
    logs = list((lab.state / "spark-lab/local/logs").glob("*.log"))
    assert len(logs) == 2  # that of the killed one was kept


def test_watch_follows_a_down(lab: Lab) -> None:
    """What a person stopped is stopped in order: nothing is restarted."""
    assert lab.run("up").returncode == 0
    with watching(lab, "--restart") as events:
        until(events, "state")
        assert lab.run("down").returncode == 0
        while until(events, "state")["state"] != "stopped":
            pass
    kept = (lab.state / "spark-lab/local/events.jsonl").read_text()
    assert "restarting" not in kept


def test_wrong_answer_fails_the_start(lab: Lab) -> None:
    done = lab.run("up", CANARY_EXPECT="London")
    assert done.returncode == 1
    message = done.stderr.partition("error: ")[2]
    assert message.startswith("local: the server says it is ready, but it is not: asked 'What is the capital of France?")
    assert "the model did not say 'London' but 'The capital of France is Paris.'" in message
    assert "CANARY=0" in message
    assert lab.run("status").stdout.startswith("kit local: stopped")
    assert list((lab.state / "spark-lab/local/logs").glob("*.log"))
    assert lab.run("up", CANARY_EXPECT="London", CANARY="0").returncode == 0


def test_stopped_process_stalls_the_start(lab: Lab) -> None:
    with lab.begin("up", STALL_TIMEOUT="3") as up:
        assert up.stderr
        pid = int(next(line for line in up.stderr if line.startswith("started pid ")).split()[2].rstrip(","))
        eventually(lambda: len(session(pid)) > 1)
        for member in session(pid):
            os.kill(member, signal.SIGSTOP)
        said = up.stderr.read()
    assert up.returncode == 1
    assert re.search(r"error: local: the start has stalled: no progress for \d s in phase '[\w ]+' \(limit 3 s, STALL_TIMEOUT\)", said)
    assert "stopped by a signal: sh (pid " in said
    assert not session(pid)


def _write_a_long_text(lab: Lab) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True}
    with contextlib.suppress(OSError, http.client.HTTPException):  # the server is stopped before it is done
        lab.get("/v1/completions", body=body)


def test_busy_server_is_not_called_dead(lab: Lab) -> None:
    """One request at a time is decoded here, so the one-token request waits; that the counters move is enough."""
    assert lab.run("up").returncode == 0
    writer = threading.Thread(target=_write_a_long_text, args=(lab,))
    writer.start()
    eventually(lambda: "llamacpp:requests_processing 1" in lab.get("/metrics")[1])
    told = json.loads(lab.run("status", "--json").stdout)
    assert writer.is_alive()
    assert (told["state"], told["engine"]) == ("ready", True)
    assert told["engine_detail"].startswith("busy: 1 requests running, ")
    assert lab.run("down").returncode == 0
    writer.join(30)


def test_phases_are_in_the_record_and_told(lab: Lab) -> None:
    up: subprocess.CompletedProcess[str] = lab.run("up", "--json")
    phases = json.loads(up.stdout)["boot_phases_s"]
    assert phases == lab.record["boot_phases_s"]
    assert list(phases)[:2] == ["process", "load"]
    assert list(phases)[-1] == "canary"
    assert phases["load"] > 0.05
    assert f"weights {phases['load']:.1f}" in up.stderr.splitlines()[-1]
