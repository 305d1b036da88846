"""When a watch acts: on nodes that answer as scripted, through the real look, restart and breaker."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import BadSettings, LaunchError
from cluster.execute import Nodes
from cluster.session import Cluster
from cluster.settings import load
from cluster.watch import Options, Watch, refused_setting
from cluster.watch_events import Event
from tests.cluster.scripted import Node, answer

CRASHED = {"running": False, "exit_code": 137}
NO_IMAGE: dict[str, Any] = {
    "docker_error": None, "image": None, "missing_paths": [], "unwritable": [], "ports": {}, "foreign_container": False,
    "free": {},
}  # fmt: skip
ONLY_CHECKED = {"SKIP_DOCTOR": "1", "SKIP_DOWNLOAD": "1", "SKIP_SYNC": "1"}
NOTHING = {"was_running": False, "left": [], "log": None, "log_lost": False}


class Scene:
    """A watch with two strikes and `--restart` over two scripted nodes, and what it told."""

    def __init__(self, folder: Path, head: list[Any], worker: list[Any], restart: bool = True) -> None:
        probe = answer(1, running=False)["probe"]
        others = {"rank_probe": probe, "preflight": NO_IMAGE, "rank_stop": NOTHING, "lock": {"held": True, "by": None}}
        self.nodes = [Node("head", head, others=others), Node("worker", worker, others=others)]
        cluster = Cluster(load({"kit": "twin"}, ONLY_CHECKED), Nodes({node.role: node for node in self.nodes}, "python3"))
        self.events: list[Event] = []
        self.watch = Watch(cluster, Options(1, 2, restart), folder / "run/events.jsonl", self.events.append, lambda text: None)

    def looks(self, count: int) -> list[tuple[str, str]]:
        for _ in range(count):
            self.watch.once()
        return [(event.event, event.detail) for event in self.events]

    def asked(self, action: str) -> int:
        return sum(1 for node in self.nodes for request in node.asked if request["action"] == action)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times: list[float] = []
    monkeypatch.setattr("time.sleep", times.append)
    return times


WORKER_GONE = [answer(1, running=False, exit_code=137)]


def test_nothing_is_done_on_the_first_bad_look(tmp_path: Path, slept: list[float]) -> None:
    scene = Scene(tmp_path, [answer(1)], WORKER_GONE)
    assert scene.looks(1) == [("bad look 1 of 2", "worker: killed by SIGKILL")]
    assert (scene.asked("rank_stop"), scene.asked("lock"), slept) == (0, 0, [])


def test_nothing_is_done_without_restart(tmp_path: Path, slept: list[float]) -> None:
    scene = Scene(tmp_path, [answer(1)], WORKER_GONE, restart=False)
    assert [event for event, _ in scene.looks(5)] == ["bad look 1 of 2", "failed"]
    assert (scene.asked("rank_stop"), scene.asked("lock")) == (0, 0)


def test_two_restarts_with_backoff_then_no_further(tmp_path: Path, slept: list[float]) -> None:
    """Both restarts fail at their check (no image on the nodes), so nothing is stopped; the third one is not tried."""
    scene = Scene(tmp_path, [answer(1)], WORKER_GONE)
    told = scene.looks(6)
    assert [event for event, _ in told] == [
        "bad look 1 of 2", "failed", "restarting", "restart failed", "restarting", "restart failed", "no restart",
    ]  # fmt: skip
    assert [detail for event, detail in told if event == "restarting"] == ["in 10 s", "in 120 s"]
    assert slept == [10, 120]
    assert told[-1] == ("no restart", "2 restarts within the hour: no further one")
    assert (scene.asked("preflight"), scene.asked("rank_stop")) == (4, 0)
    kept = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in kept] == [event for event, _ in told]
    assert {event["kit"] for event in kept} == {"twin"}


def test_failed_restart_that_left_the_kit_stopped_is_tried_again(tmp_path: Path, slept: list[float]) -> None:
    gone = answer(1, running=False, exit_code=137)
    stopped = answer(2, running=False, record=None)
    scene = Scene(tmp_path, [gone, gone, gone, stopped], [gone, gone, gone, stopped])
    assert [event for event, _ in scene.looks(4)] == [
        "bad look 1 of 2", "failed", "restarting", "restart failed", "state", "restarting", "restart failed", "no restart",
    ]  # fmt: skip


def test_kit_that_a_person_stopped_stays_stopped(tmp_path: Path, slept: list[float]) -> None:
    stopped = answer(2, running=False, record=None)
    scene = Scene(tmp_path, [stopped], [stopped])
    assert scene.looks(5) == [("state", "")]


def test_node_out_of_reach_is_not_restarted(tmp_path: Path, slept: list[float]) -> None:
    scene = Scene(tmp_path, [answer(1)], [None])
    told = scene.looks(4)
    assert [event for event, _ in told] == ["bad look 1 of 2", "failed", "no restart"]
    assert told[-1][1].startswith("a node is out of reach")
    assert scene.asked("rank_stop") == 0


def test_recovered_during_the_backoff(tmp_path: Path, slept: list[float]) -> None:
    frozen, fine = answer(1, state="T"), answer(2)
    scene = Scene(tmp_path, [fine], [frozen, frozen, answer(3, running=False, record=None)])
    scene.nodes[0].answers = [fine, fine, answer(3, running=False, record=None)]
    told = scene.looks(2)
    assert told[-1] == ("no restart", "meanwhile it is stopped")
    assert scene.asked("preflight") == 0


def test_refused_setting_breaks_the_circuit(tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, [answer(1)], WORKER_GONE)
    said = "rank 0 ended while starting (exit 2)\nlast lines:\n  vllm serve: error: argument --dtype: invalid choice: 'nonsense'"

    def restart(cluster: Cluster, say: Any) -> None:
        raise LaunchError(said)

    monkeypatch.setattr("cluster.lifecycle.restart", restart)
    told = scene.looks(5)
    reason = "a setting is refused: vllm serve: error: argument --dtype: invalid choice: 'nonsense'"
    assert told[-2:] == [("restart failed", reason), ("no restart", reason)]
    assert len(slept) == 1


def test_what_a_refused_setting_is() -> None:
    assert refused_setting(BadSettings("PORT is 0")) == "PORT is 0"
    assert refused_setting(LaunchError("x", tail=["CUDA out of memory"])) == ""
