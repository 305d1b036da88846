"""Steps on several nodes at once: every outcome is gathered, and one failure names all that failed."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from cluster.errors import LaunchError
from cluster.execute import Nodes, Results
from cluster.plan import Stage, Step
from cluster.transport import LocalTransport, Outcome

ROLES = ("head", "worker", "worker2")


@pytest.fixture
def nodes() -> Nodes:
    return Nodes({role: LocalTransport(role) for role in ROLES}, "python3")


def step(role: str, folder: Path, action: str = "probe", timeout_s: float = 20) -> Step:
    request = {"action": action, "name": "x", "run_dir": str(folder / role), "port": None, "token": "t", "owner": "o", "ttl_s": 1}
    return Step(role, f"{action} on {role}", request, timeout_s)


def test_every_node_is_asked_and_the_good_answers_survive_a_bad_one(nodes: Nodes, tmp_path: Path) -> None:
    results = nodes.run([step("head", tmp_path), step("worker", tmp_path, "dance"), step("worker2", tmp_path)])
    assert sorted(results.answers) == ["head", "worker2"]
    assert [results.answers[role]["record"] for role in ("head", "worker2")] == [None, None]
    assert list(results.failures) == ["worker"]
    assert str(results.failures["worker"]).startswith("worker: the node agent could not dance x (exit 1)")


def test_one_failure_names_every_node_that_failed(nodes: Nodes, tmp_path: Path) -> None:
    stage = Stage("dancing", tuple(step(role, tmp_path, "dance") for role in ("head", "worker")))
    with pytest.raises(LaunchError) as caught:
        nodes.stage(stage)
    text = str(caught.value)
    assert text.startswith("stage 'dancing' failed for 2 reasons")
    assert "head: the node agent" in text
    assert "worker: the node agent" in text
    assert "ran: dance on worker" in text


def test_a_single_failure_stays_as_it_is() -> None:
    alone = LaunchError("no", node="worker")
    with pytest.raises(LaunchError) as caught:
        Results({}, {"worker": alone}).all_or_raise("anything")
    assert caught.value is alone


def test_steps_run_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(len(ROLES), timeout=20)

    class Meeting(LocalTransport):
        def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
            together.wait()  # broken, unless all of them are on their way
            return super().run(argv, stdin=stdin, timeout_s=timeout_s)

    nodes = Nodes({role: Meeting(role) for role in ROLES}, "python3")
    assert len(nodes.run(step(role, tmp_path) for role in ROLES).answers) == 3


def test_a_step_that_takes_too_long_is_a_failure(nodes: Nodes, tmp_path: Path) -> None:
    results = nodes.run([step("head", tmp_path, timeout_s=0.001)])
    assert "timed out" in str(results.failures["head"])


@pytest.mark.parametrize(("leave", "waits"), [(True, False), (False, True)])
def test_interrupted_steps_that_change_nothing_are_left_to_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: bool, waits: bool
) -> None:
    let_go, done = threading.Event(), threading.Event()

    class Held(LocalTransport):
        def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
            let_go.wait(20)
            done.set()
            return super().run(argv, stdin=stdin, timeout_s=timeout_s)

    def interrupted(futures: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.wait", interrupted)
    if waits:
        threading.Timer(0.5, let_go.set).start()
    with pytest.raises(KeyboardInterrupt):
        Nodes({"head": Held("head")}, "python3").run([step("head", tmp_path)], leave=leave)
    assert done.is_set() is waits
    let_go.set()
