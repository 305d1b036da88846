"""A start with ABLIT=1 is believed only when every rank reported the same edit; only the nodes are made up."""

import pytest

from cluster.errors import LaunchError
from cluster.execute import Nodes
from cluster.session import Cluster
from cluster.settings import load
from cluster.waiting import Wait
from tests.cluster.scripted import Node, answer

PART = '"world":2,"part":"model","method":"proj","alpha":3.0,"layers":"1","source":"ab","ratio":[-2.0,-2.0],"rel_l2":[0.1,0.1]}'
HEAD, WORKER = (f'INFO ablation summary: {{"rank":{rank},{PART}' for rank in (0, 1))


def wait(head: list[object], worker: list[object], **settings: str) -> tuple[Wait, Node, list[str]]:
    said: list[str] = []
    node = Node("worker", worker)  # type: ignore[arg-type]
    nodes = Nodes({"head": Node("head", head), "worker": node}, "python3")  # type: ignore[arg-type]
    return Wait(Cluster(load({"kit": "twin", **settings}, {}), nodes), "token", said.append), node, said


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


def test_both_ranks_edited() -> None:
    waiting, node, said = wait([answer(101, HEAD), answer(102, health=200)], [answer(101, WORKER), answer(102)], ablit="1")
    waiting.until_ready()
    waiting.edited()
    assert said == ["edited at load: model layers 1, proj alpha 3, source ab, the same on all 2 ranks; signed ratio -2.0000 to -2.0000"]
    waiting.note_phases()
    (note,) = [asked["notes"] for asked in node.asked if asked["action"] == "watch_note"]
    assert note["ablation"][0]["rank"] == 1


def test_a_look_that_was_missed() -> None:
    """The report comes with the look after the one that said ready."""
    waiting, _, said = wait([answer(101, HEAD), answer(102, health=200)], [answer(101), answer(102), answer(103, WORKER)], ablit="1")
    waiting.until_ready()
    waiting.edited()
    assert len(said) == 1


def test_a_rank_without_the_plugin() -> None:
    waiting, _, _ = wait([answer(101, HEAD), answer(102, health=200)], [answer(101)], ablit="1")
    waiting.until_ready()
    with pytest.raises(LaunchError, match="cannot be trusted: worker: rank 1 reported no edit") as caught:
        waiting.edited()
    assert "the plugin vllm-glm-exl3 in the image" in str(caught.value)


def test_without_ablit_nothing_is_asked_for() -> None:
    waiting, node, said = wait([answer(101, health=200)], [answer(101)])
    waiting.until_ready()
    waiting.edited()
    assert (said, len(node.asked)) == ([], 1)
    waiting.note_phases()
    assert "ablation" not in next(asked["notes"] for asked in node.asked if asked["action"] == "watch_note")
