"""The wait for ready on a cluster whose nodes answer as scripted; only the transport is made up."""

from collections.abc import Callable
from typing import Any

import pytest

from cluster.boot.canary import Plan
from cluster.errors import LaunchError
from cluster.execute import Nodes
from cluster.session import Cluster
from cluster.settings import load
from cluster.waiting import Wait
from tests.cluster.scripted import Node, answer
from tests.cluster.served import Script, serving

Make = Callable[..., tuple[Wait, list[str]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def _make(head: list[Any], worker: list[Any], **settings: str) -> tuple[Wait, list[str]]:
        said: list[str] = []
        nodes = Nodes({"head": Node("head", head), "worker": Node("worker", worker)}, "python3")
        cluster = Cluster(load({"kit": "twin", **settings}, {}), nodes)
        return Wait(cluster, "token", said.append), said

    return _make


def failure(wait: Wait) -> str:
    with pytest.raises(LaunchError) as caught:
        wait.until_ready()
    return str(caught.value)


def node(wait: Wait, role: str) -> Node:
    found = wait.cluster.nodes.transports[role]
    assert isinstance(found, Node)
    return found


def test_ready_with_the_phases_of_each_rank(make: Make) -> None:
    join = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://x backend=gloo"
    head = [answer(101), answer(110, "first"), answer(120, join), answer(130, "Starting to load model x"), answer(140, health=200)]
    worker = [answer(101), answer(111, "first"), answer(121, join), answer(131), answer(141)]
    wait, _ = make(head, worker)
    wait.until_ready()
    assert wait.phases["head"].durations_s() == {"container": 1, "process": 19, "join": 10, "load": 10}
    phases_s = wait.note_phases()
    assert list(phases_s) == ["container", "process", "join", "load", "canary"]
    (note,) = [asked for asked in node(wait, "worker").asked if asked["action"] == "watch_note"]
    assert (note["boot"], list(note["notes"]["boot_phases_s"])) == ("b1", ["container", "process", "join", "canary"])


def test_each_look_goes_on_where_the_last_one_ended(make: Make) -> None:
    wait, _ = make([answer(101), answer(102), answer(103, health=200)], [answer(101)])
    wait.until_ready()
    assert [asked["cursor"] for asked in node(wait, "head").asked] == ["", "c101", "c102"]
    assert node(wait, "head").asked[0]["deep"] is True
    assert node(wait, "head").asked[1]["deep"] is False


def test_rebooted_node(make: Make) -> None:
    wait, _ = make([answer(101)], [answer(101), answer(102, boot_id="k2")])
    assert failure(wait).splitlines()[0] == "worker: the node has restarted while the ranks were starting"


def test_three_misses_in_a_row(make: Make) -> None:
    wait, _ = make([answer(101)], [answer(101), None, None, answer(102), None, None, answer(103), None, None, None])
    assert "no route to host" in failure(wait)
    assert len(node(wait, "worker").asked) == 10


def test_ended_rank_names_the_line_of_the_other_that_explains_it(make: Make) -> None:
    """The memory line stands on the worker, earlier than its end; the head ends later, with noise (field report F10)."""
    memory = "ValueError: Free memory on device cuda:0 (9/121 GiB) on startup is less than desired GPU memory utilization"
    wait, _ = make([answer(101), answer(103, "NCCL WARN connection closed", running=False)], [answer(101, memory), answer(104)])
    lines = failure(wait).splitlines()
    assert lines[0] == "head: rank 0 ended while starting (exit 1)"
    assert lines[1] == f"most likely: less memory was free at the start than the engine was told to use: worker: {memory}"
    assert lines[-1].startswith("try: invoke logs --rank 0; lower GPU_MEM_UTIL")
    assert lines[-3:-1] == ["last lines:", "  NCCL WARN connection closed"]


def test_ended_for_lack_of_memory(make: Make) -> None:
    wait, _ = make([answer(101)], [answer(102, running=False, oom_killed=True)])
    text = failure(wait)
    assert text.startswith("worker: rank 1 ended while starting (killed for lack of memory (OOM))\n")
    assert text.endswith("try: invoke logs --rank 1; give it more memory, or lower GPU_MEM_UTIL or MAX_MODEL_LEN")


def test_stall_is_told_with_evidence(make: Make) -> None:
    head = [answer(101, "first"), *[answer(101 + n) for n in range(1, 40)]]
    worker = [answer(101, "first"), *[answer(101 + n, "still waiting", state="D") for n in range(1, 40)]]
    wait, _ = make(head, worker, stall_timeout="20")
    lines = failure(wait).splitlines()
    assert lines[0].startswith(
        "head: the start has stalled: no progress for 20 s in phase 'process and imports' (limit 20 s, STALL_TIMEOUT)"
    )
    assert lines[1].startswith("head: process and imports since 20 s; 1 processes (S 1), 0.0 cores used; 1.0 of 2.0 GiB memory available")
    assert lines[2].startswith("worker: process and imports since 20 s; 1 processes (D 1)")
    assert "  head: first" in lines
    assert "  worker: still waiting" in lines


def test_stall_has_the_phase_s_own_limit(make: Make) -> None:
    """Imports may take 180 s without a word: not 179."""
    wait, _ = make([answer(101), answer(280), answer(281)], [answer(101), answer(280), answer(281)])
    assert "no progress for 180 s" in failure(wait)
    assert len(node(wait, "head").asked) == 3


def test_too_late(make: Make) -> None:
    wait, _ = make([answer(101, "a word")], [answer(101)], ready_timeout="0.01")
    lines = failure(wait).splitlines()
    assert lines[0] == "head: not ready within 0.01 s (READY_TIMEOUT)"
    assert lines[1].startswith("head: process and imports since ")
    assert lines[-2] == "  head: a word"


def test_silent_progress_for_four_seconds(make: Make) -> None:
    wait, said = make([answer(101), answer(102, health=200)], [answer(101)])
    wait.until_ready()
    assert said == []


@pytest.mark.parametrize(("text", "wrong"), [("Paris", ""), ("London", "the model did not say 'Paris'")])
def test_canary(make: Make, text: str, wrong: str) -> None:
    wait, _ = make([answer(101, health=200)], [answer(101)])
    wait.until_ready()
    with serving(Script(answers=(text,))) as server:
        if not wrong:
            wait.canary(server, Plan("Paris", False, False))
            return
        with pytest.raises(LaunchError, match=wrong) as caught:
            wait.canary(server, Plan("Paris", False, False))
    assert str(caught.value).startswith("head: the server says it is ready, but it is not: ")


def test_rank_that_vanishes_at_the_first_request(make: Make) -> None:
    """Field report G7: the canary's answer never comes, the lost rank is named instead."""
    wait, _ = make([answer(101, health=200)], [answer(101), answer(102), answer(103, running=False)])
    wait.until_ready()
    with serving(Script(wait_s=60)) as server, pytest.raises(LaunchError) as caught:
        wait.canary(server, Plan(None, False, False))
    assert str(caught.value).startswith("worker: rank 1 ended while starting")
