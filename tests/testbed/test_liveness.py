"""Starts that stall or lack memory, and ranks that hang or die while /health still answers: on real containers with real vLLM."""

import json
import time
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any

import pytest

from tests.testbed import faults, quiet, twin
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import wait_until
from tests.testbed.twin import TAKEN_BACK_S, Done, User, clean, refused

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(900)]

# Of a watch with --interval 2 and three strikes, as it says itself: 2 + 2 x 5 + 5 s; with the 5 s for one token 2 + 2 x 10 + 10 s; with
# the 10 s for a connection attempt and two strikes 2 + 15 + 15 s.
INTERVAL_S, ENDED_WITHIN_S, HUNG_WITHIN_S, AWAY_WITHIN_S = "2", 17.0, 32.0, 32.0
BUSY_MACHINE_S = 10.0  # two cores run two ranks of vLLM, the watch and this test


@pytest.fixture(scope="module")
def ready(testbed: Testbed) -> Testbed:
    twin.prepare(testbed)
    twin.clear(testbed.hosts)
    return testbed


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    return User.at(tmp_path_factory.mktemp("user"))


@pytest.fixture
def hosts(ready: Testbed) -> Iterator[tuple[Host, ...]]:
    twin.clear(ready.hosts)
    yield ready.hosts
    twin.clear(ready.hosts)


def _members(host: Host, word: str) -> list[str]:
    """Pids of the host whose command line holds the word."""
    rows = [line.split(maxsplit=1) for line in host.run("ps", "-eo", "pid=,args=").splitlines()]
    return [pid for pid, args in rows if word in args]


def _running(hosts: tuple[Host, ...]) -> bool:
    return [twin.containers(host) for host in hosts] == [["spark-lab-head"], ["spark-lab-worker"]]


def test_worker_that_never_comes(user: User, hosts: tuple[Host, ...]) -> None:
    """Every process of the worker's container is stopped right after its start: the start fails with evidence of both ranks."""
    begin = time.monotonic()
    with user.begin("up", STALL_TIMEOUT="8") as process:
        assert wait_until(lambda: _running(hosts), 40, every_s=0.1)
        hosts[1].run("kill", "-STOP", *_members(hosts[1], "vllm"))
        done = twin.finish(process, begin)
    words = (
        "worker: the start has stalled: no progress for ", "(limit 8 s, STALL_TIMEOUT)", "a process is stopped by a signal",
        "head: ", "worker: ", "stopped by a signal: ", "10.77.0.1: no connection", "GiB memory available", "look at worker first",
    )  # fmt: skip
    refused(done, *words, within_s=TAKEN_BACK_S + 20)
    clean(hosts)


def test_out_of_memory_while_starting(user: User, hosts: tuple[Host, ...]) -> None:
    """The worker's container may use 120 MiB, which its imports alone exceed: the kernel kills it."""
    begin = time.monotonic()
    with user.begin("up") as process:
        assert wait_until(lambda: _running(hosts), 40, every_s=0.05)
        hosts[1].run("docker", "update", "--memory", "120m", "--memory-swap", "120m", "spark-lab-worker")
        done = twin.finish(process, begin)
    words = ("worker: rank 1 ended while starting (killed for lack of memory (OOM))", "GPU_MEM_UTIL", "invoke logs --rank 1")
    refused(done, *words, within_s=TAKEN_BACK_S + 20)
    clean(hosts)


# --- one boot for all that follows, in this order ---


@pytest.fixture(scope="module")
def booted(ready: Testbed, user: User) -> Iterator[Done]:
    twin.clear(ready.hosts)
    done = user.invoke("up")
    if done.code != 0:
        pytest.fail(f"up ended with {done.code}\n{done.err}")
    yield done
    twin.clear(ready.hosts)


def _status(user: User) -> tuple[int, dict[str, Any]]:
    done = user.invoke("status", "--json")
    seen: dict[str, Any] = json.loads(done.out)
    print(f"status: {done.wall_s:.1f} s, {seen['state']}: {seen['detail']}")
    return done.code, seen


def test_phases_are_told_and_remembered(booted: Done, user: User) -> None:
    print(booted.err)
    code, seen = _status(user)
    assert (code, seen["state"], seen["engine"]) == (0, "ready", True)
    head, worker = (rank["record"]["boot_phases_s"] for rank in seen["ranks"])
    assert list(head) == ["container", "process", "join", "load", "kv", "warmup", "api", "canary"]
    assert list(worker) == ["container", "process", "join", "load", "kv", "canary"]
    assert all(seconds >= 0 for seconds in (*head.values(), *worker.values()))
    assert "  head: ranks meet, " in booted.err or "  head: weights" in booted.err
    last = booted.err.splitlines()[-1]
    assert last.startswith("ready after ")
    assert f"process and imports {head['process']:.1f}, " in last


def test_no_false_alarm_under_load(booted: Done, user: User) -> None:
    events, tokens = quiet.run(user, 120)
    print(f"{tokens} tokens, {events}")
    assert [(event["event"], event["state"]) for event in events] == [("state", "ready")]
    assert tokens > 500


def _next(events: "Queue[dict[str, Any]]", event: str, within_s: float) -> dict[str, Any]:
    """The next event of that kind; fails when it does not come in time. Prints how long it took."""
    begin = time.monotonic()
    seen: list[dict[str, Any]] = []
    while True:
        try:
            found = events.get(timeout=max(0.0, begin + within_s - time.monotonic()))
        except Empty:
            pytest.fail(f"no '{event}' within {within_s} s, only {seen}")
        seen.append(found)
        if found["event"] == event:
            print(f"{event}: {found['state']} after {time.monotonic() - begin:.1f} s")
            return found


def test_hanging_ranks_are_told_while_health_answers(booted: Done, user: User, ready: Testbed) -> None:
    head, worker = ready.hosts
    with quiet.watching(user, "--interval", INTERVAL_S) as events:
        _next(events, "state", 20)

        (engine,) = _members(head, "VLLM::EngineCore")
        head.run("kill", "-STOP", engine)
        code, seen = _status(user)
        found = _next(events, "failed", ENDED_WITHIN_S + BUSY_MACHINE_S)
        head.run("kill", "-CONT", engine)
        assert (code, seen["api"], [rank["state"] for rank in seen["ranks"]]) == (1, True, ["frozen", "running"])
        assert f"VLLM::EngineCor (pid {engine})" in seen["ranks"][0]["detail"]
        assert (found["state"], "head: stopped by a signal" in found["detail"]) == ("frozen", True)
        _next(events, "recovered", 30)

        (rank,) = _members(worker, "VLLM::Worker_TP1")
        worker.run("kill", "-STOP", rank)
        found = _next(events, "failed", ENDED_WITHIN_S + BUSY_MACHINE_S)
        worker.run("kill", "-CONT", rank)
        assert (found["state"], "worker: stopped by a signal" in found["detail"]) == ("frozen", True)
        _next(events, "recovered", 30)

        # Nothing in the process table shows this one: only the engine that generates no token.
        worker.run("docker", "pause", "spark-lab-worker")
        found = _next(events, "failed", HUNG_WITHIN_S + BUSY_MACHINE_S)
        worker.run("docker", "unpause", "spark-lab-worker")
        assert (found["state"], "one token was not generated within 5 s" in found["detail"]) == ("hung", True)
        _next(events, "recovered", 30)


def test_node_out_of_reach_is_told_and_comes_back(booted: Done, user: User, ready: Testbed) -> None:
    """With two strikes, to save a look of 12 s: the state of the connection that the watch has is tried first, then a new one."""
    with quiet.watching(user, "--interval", INTERVAL_S, WATCH_STRIKES="2") as events:
        _next(events, "state", 20)
        with faults.link_down(ready.hosts[1]):
            found = _next(events, "failed", AWAY_WITHIN_S + BUSY_MACHINE_S)
        assert (found["state"], found["detail"].startswith("worker: ")) == ("unreachable", True)
        assert _next(events, "recovered", 40)["state"] == "ready"


def test_second_watch_is_refused(booted: Done, user: User) -> None:
    with quiet.watching(user, "--interval", INTERVAL_S) as events:
        _next(events, "state", 20)
        second = user.invoke("watch")
    assert second.code == 1
    assert "error: another watch looks after kit twin (pid " in second.err


def test_killed_rank_is_told_while_health_answers(booted: Done, user: User, ready: Testbed) -> None:
    """The last test of this boot. vLLM's head notices the loss with its next request, so the first status sends none."""
    ready.hosts[1].run("docker", "kill", "--signal", "KILL", "spark-lab-worker")
    done = user.invoke("status", "--json", "--passive")
    seen = json.loads(done.out)
    assert (done.code, seen["process"], seen["api"]) == (1, False, True)
    assert [rank["state"] for rank in seen["ranks"]] == ["running", "crashed"]
    assert seen["state"] == "incomplete: head running, worker crashed"
    with quiet.watching(user, "--interval", INTERVAL_S) as events:
        found = _next(events, "failed", ENDED_WITHIN_S + BUSY_MACHINE_S)
    assert (found["state"], "worker: killed by SIGKILL" in found["detail"]) == ("crashed", True)
    assert user.invoke("down").code == 0
    clean(ready.hosts)
