"""What the tasks do before and without any docker: nothing is asked when all is in place; which machine runs the pipe."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.errors import BadSettings
from cluster.execute import Nodes
from cluster.images import ensure, ship, work
from cluster.session import Cluster
from cluster.settings import Effective
from cluster.transport import LocalTransport, Outcome, SshTarget
from tests.cluster.images.samples import CLASSIC, CONTAINERD
from tests.cluster.plans import effective


@dataclass
class Silent:
    """A transport that must not be used."""

    node: str
    ran: list[Sequence[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float) -> Outcome:
        self.ran.append(argv)
        raise AssertionError(f"{self.node} was asked: {stdin[-200:]}")

    def close(self) -> None: ...


def cluster(made: Effective) -> Cluster:
    return Cluster(made, Nodes({role: Silent(role) for role in made.kit.nodes}, "python3"))


def fact(inspected: Any, **more: Any) -> dict[str, Any]:
    return {"image": inspected, "docker_error": None, **more}


def test_in_place_means_no_request_beyond_the_check() -> None:
    """Also when one node has the other store of docker."""
    said: list[str] = []
    made = effective("spark2", IMAGE="ghcr.io/site/glm@sha256:" + "d" * 64)
    assert ensure.settle(cluster(made), "token", said.append, {"head": fact(CLASSIC), "worker": fact(CONTAINERD)}) is False
    built, baked = said
    assert "was built from other sources (0123456789abcdef) than this checkout's (" in built
    assert "has variables of the fabric inside: NCCL_DEBUG=INFO" in baked


def test_a_difference_is_worked_on() -> None:
    other = {**CONTAINERD, "RootFS": {"Layers": ["sha256:other"]}}
    with pytest.raises(AssertionError, match="worker was asked"):
        ensure.settle(cluster(effective("spark2", IMAGE="glm:1")), "", print, {"head": fact(CLASSIC), "worker": fact(other)})


def test_no_work_without_containers() -> None:
    made = effective("local")
    assert ensure.settle(cluster(made), "", print, {"local": fact(None)}) is False
    with pytest.raises(BadSettings, match="kit local runs without containers"):
        work.site(cluster(made), "", print)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (SshTarget("w", "10.0.0.2"), ["10.0.0.2"]),
        (SshTarget("w", "wk", "ada", 2222, ssh_config="/x/config"), ["-F", "/x/config", "-l", "ada", "-p", "2222", "wk"]),
    ],
)
def test_words_for_the_ssh_client(target: SshTarget, words: list[str]) -> None:
    assert ship.words(target) == words


def test_a_head_that_is_this_machine_runs_the_pipe_itself() -> None:
    made = effective("spark2", WORKER_SSH="ada@wk:2222", SSH_CONFIG="/x/config")
    nodes = Nodes({"head": LocalTransport("head"), "worker": Silent("worker")}, "python3")
    site = work.Site(Cluster(made, nodes), "", print)
    where, ends = ship._route(site, ["worker"])
    words = ["-F", "/x/config", "-l", "ada", "-p", "2222", "wk"]
    assert (where, ends) == ("head", {"source": None, "targets": {"worker": {"words": words, "ip": "10.0.0.2"}}})


def test_a_remote_head_uses_its_own_configuration_and_the_fabric() -> None:
    site = work.Site(cluster(effective("spark2", WORKER_SSH="ada@wk", SSH_CONFIG="/x/config")), "", print)
    assert ship._from_head(site, "worker") == {"words": ["-l", "ada", "10.0.0.2"], "ip": None}
