"""A real campaign on the local model: real restarts, an interruption, and going on from there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.campaign import runner
from bench.check import check
from bench.receipt import Receipt, find
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.model


def invoke(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True, env=env, timeout=60)


def run_until(folder: Path, done: int, env: dict[str, str]) -> None:
    """bench-run until `done` slots are filled and the next one has begun, then Ctrl-C."""
    process = subprocess.Popen([sys.executable, "-m", "invoke", "bench-run", str(folder)], cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 100
        while not _begun(folder, done) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (1, 3)
    finally:
        process.kill()


def _begun(folder: Path, slot: int) -> bool:
    return any(entry["event"] == "start" and entry["slot"] == slot for entry in runner.journal(runner.opened(folder))[-1:])


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    port = str(free_port())
    env, folder = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PORT": port}, tmp_path / "c"
    sets = ("--set", "none:SPEC_METHOD=none", "--set", "ngram:SPEC_METHOD=ngram")
    planned = invoke(
        "bench-plan", "--kit", "local", "--arms", "none,ngram", *sets, "--runs", "1", "--max-tokens", "8", "--out", str(folder), env=env
    )
    assert planned.returncode == 0, planned.stderr
    run_until(folder, 1, env)
    assert invoke("status", "--kit", "local", "--passive", env=env).returncode == 1, "the server outlived the interrupted run"
    run_until(folder, 2, env)
    campaign = runner.opened(folder)
    state = runner.state(campaign)
    assert state.finished == {0, 1}
    assert state.attempts[1] == 2
    receipts: list[Receipt] = [check(path) for path in find([campaign.receipts])]
    assert [each.arm for each in receipts] == list(campaign.plan.order[:2])
    assert len({each.system.boot for each in receipts}) == 2
    wanted = {"none": "none", "ngram": "ngram"}
    assert [(each.system.settings or {})["spec_method"] for each in receipts] == [wanted[arm] for arm in campaign.plan.order[:2]]
    shown = invoke("bench-run", str(folder), "--status", env=env)
    assert shown.stdout.splitlines()[-1] == "2 of 8 slots done"
    unfinished = invoke("compare", "--plan", str(folder), env=env)
    assert (unfinished.returncode, "the plan is unfinished: 6 of 8 slots are open" in unfinished.stdout) == (4, True), unfinished.stderr
