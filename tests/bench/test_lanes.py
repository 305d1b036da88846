"""Lanes on one clock, against the scripted server, whose own log says when it received what."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.check import check
from bench.lanes import Broken, Lane, Session, Shot, Stage
from bench.phases.decode import sending
from bench.stream import Deadlines, Endpoint
from tests.bench.scripted import SOUND, scenario
from tests.fakes.builders import server_error, uniform
from tests.fakes.script import Content, Reply, Role, Scenario, Stall
from tests.fakes.sse_server import ScriptedServer

ROOT = Path(__file__).parents[2]
ANSWER = Reply(uniform(40, 2, 0.02, 0.1, usage="per-chunk"))


def session(server: ScriptedServer, lines: list[str]) -> Session:
    return Session(Endpoint(server.base_url, None, "vllm"), "test-model", Deadlines(), lines.append)


def shots(count: int) -> list[Shot]:
    return [Shot(f"p{lane}", f"text {lane}", 40, lane=lane) for lane in range(count)]


def test_start_times_are_those_at_which_the_server_received_the_requests() -> None:
    def after(shot: Shot) -> Lane:
        async def lane(stage: Stage) -> None:
            await asyncio.sleep(0.4 * shot.lane)  # so that setting up one client does not hold up another
            await stage.send(shot)

        return lane

    with ScriptedServer(Scenario([ANSWER])) as server:
        mine = session(server, [])
        asyncio.run(mine.together(*[after(shot) for shot in shots(3)]))
        received = [record.t_received_ns / 1e9 for record in server.requests() if record.method == "POST"]
    starts = [run.place.start_s for run in mine.runs if run.place]
    assert starts == sorted(starts)
    # both on the same clock but for its zero: the differences agree
    shifts = [there - here for here, there in zip(starts, sorted(received), strict=True)]
    assert max(shifts) - min(shifts) < 0.35  # less than the stagger; connecting, on a busy machine, is part of it
    assert [run.index for run in mine.runs] == [0, 1, 2]
    assert mine.rounds[0].index == 0


def test_lanes_overlap_on_the_rounds_clock() -> None:
    """Each answer takes 0.1 + 19 x 0.02 s; three one after the other would take 1.4 s from the first start to the last token."""
    with ScriptedServer(Scenario([ANSWER])) as server:
        mine = session(server, [])
        asyncio.run(mine.together(*[sending(shot) for shot in shots(3)]))
    ends = [run.place.start_s + (run.metrics.e2el_s or 0) for run in mine.runs if run.place]
    assert max(ends) - min(run.place.start_s for run in mine.runs if run.place) < 1.2


def test_a_failed_lane_ends_after_the_others_have_finished() -> None:
    replies = [Reply(server_error().steps, status=500, error="broken", when="text 1"), ANSWER]
    with ScriptedServer(Scenario(replies)) as server:
        mine = session(server, [])
        with pytest.raises(Broken):
            asyncio.run(mine.together(*[sending(shot) for shot in shots(3)]))
    assert sorted(run.trace.error is None for run in mine.runs) == [False, True, True]
    assert [run.metrics.n_tokens for run in mine.runs if not run.trace.error] == [40, 40]


def test_an_error_of_our_own_is_no_failed_lane() -> None:
    async def wrong(stage: Stage) -> None:
        raise ZeroDivisionError

    with ScriptedServer(Scenario([ANSWER])) as server, pytest.raises(ZeroDivisionError):
        asyncio.run(session(server, []).together(wrong))


def test_ctrl_c_in_a_round_keeps_every_lane_and_marks_the_receipt(tmp_path: Path) -> None:
    slow = Reply([Role(), *[Content("x")] * 3, Stall()])
    with ScriptedServer(scenario(slow, others=SOUND)) as server:
        script = [str(ROOT / "bench" / "bench_decode.py"), "--base-url", server.base_url, "--out", str(tmp_path)]
        child = subprocess.Popen(
            [sys.executable, *script, "--concurrency", "3", "--skip-coherence"], stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        _wait_for_chats(server, 4)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert child.returncode == 3
    assert "Traceback" not in err
    (file,) = (tmp_path / "invalid").glob("*.json")
    receipt = check(file)
    assert [run.trace.error for run in receipt.runs] == ["interrupted"] * 3
    assert len(receipt.rounds) == 1


def test_ctrl_c_while_the_next_prompt_is_fitted_still_reports_what_is_written(tmp_path: Path) -> None:
    """The scripted server has no tokenizer, so a length is learned by a request: here one that never ends."""
    fitting = Reply([Role(), Stall()], when="[0a1b2c3d]")
    done = Reply(uniform(20, 2, 0.001, 0.01, usage="per-chunk"), when="Write a long report")
    with ScriptedServer(Scenario([fitting, done, *SOUND])) as server:
        script = [str(ROOT / "bench" / "bench_decode.py"), "--base-url", server.base_url, "--out", str(tmp_path)]
        options = ["--phase", "long-context", "--depths", "0,2000", "--runs", "1", "--skip-coherence"]
        child = subprocess.Popen([sys.executable, *script, *options], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while (
            sum(record.method == "POST" and record.path != "/tokenize" for record in server.requests()) < 3 and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=20)
    assert "Traceback" not in err
    assert "-d0-" in err
    assert len(list(tmp_path.rglob("*.json"))) == 1


def _wait_for_chats(server: ScriptedServer, count: int) -> None:
    deadline = time.monotonic() + 20
    while sum(record.path == "/v1/chat/completions" for record in server.requests()) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
