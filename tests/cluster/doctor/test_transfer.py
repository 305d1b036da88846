"""Transfers between two addresses of this machine: real agents, real sockets; ib_write_bw is a stand-in that prints recorded-shape text."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.agent_client import ask_agent
from cluster.doctor import transfer
from cluster.errors import LaunchError
from cluster.execute import Nodes
from cluster.facts.node import Gathered
from cluster.facts.rdma import Hca
from cluster.facts.transfer import Transfers, perftest_gbit_s
from cluster.session import Cluster
from cluster.transport import LocalTransport
from tests.cluster.doctor.changes import OURS
from tests.cluster.doctor.scenes import Pair
from tests.cluster.facts import recorded
from tests.cluster.facts.test_agent_facts import tool, tools
from tests.cluster.plans import effective
from tests.ports import free_port

__all__ = ["tools"]  # fixture
HEAD, WORKER = "127.0.0.2", "127.0.0.3"
# As perftest prints it with --report_gbits and --duration: the peak is not known then.
PERFTEST = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rocep1s0f1
 ibv_wr* API     : ON           Gid index      : 3
 local address: LID 0000 QPN 0x0127 PSN 0x2d1aae RKey 0x1800be VAddr 0x00ffff9fe9b000
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      49580            0.00               12.99              0.024780
---------------------------------------------------------------------------------------
"""


class Two:
    """Both nodes are this machine; the agent runs for real at the addresses of the settings."""

    def __init__(self) -> None:
        self.effective = effective("spark2", HEAD_IP=HEAD, WORKER_IP=WORKER, HEAD_CX7_IB="rocep1s0f1", WORKER_CX7_IB="rocep1s0f0")
        transports = {role: LocalTransport(role) for role in ("head", "worker")}
        self.cluster = Cluster(self.effective, Nodes(transports, "/usr/bin/python3"))
        self.pair = Pair()

    def measure(self, *, force: bool = False) -> Transfers:
        told = {"head": self.pair.head, "worker": self.pair.worker}
        gathered = Gathered({role: recorded.facts(role, answer) for role, answer in told.items()})
        return transfer.measure(self.cluster, gathered, force=force)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less data than a user would move: this machine has other work."""
    monkeypatch.setattr(transfer, "LIMIT_BYTES", 64 << 20)
    monkeypatch.setattr(transfer, "LIMIT_S", 12)


@pytest.mark.usefixtures("short")
def test_both_directions_are_measured() -> None:
    done = Two().measure().done
    assert [(each.sender, each.receiver, each.way, each.problem) for each in done] == [
        ("head", "worker", "TCP", None), ("worker", "head", "TCP", None),
    ]  # fmt: skip
    for each in done:
        assert each.moved_bytes == 64 << 20
        assert each.seconds is not None
        assert each.gbit_s is not None
        assert 0 < each.seconds < 11  # the amount ended it, not the time
        assert each.gbit_s == pytest.approx((64 << 20) * 8 / each.seconds / 1e9)


def test_the_time_is_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LIMIT_BYTES", 1 << 50)
    monkeypatch.setattr(transfer, "LIMIT_S", 0.3)
    begin = time.monotonic()
    done = Two().measure().done
    assert time.monotonic() - begin < 8
    assert [each.seconds for each in done] == [pytest.approx(0.3, abs=0.25)] * 2
    assert all(each.moved_bytes for each in done)


def test_not_while_ours_runs_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LIMIT_BYTES", 1 << 20)
    two = Two()
    two.pair.containers({"name": "/spark-lab-head", "record": OURS})
    assert two.measure() == Transfers(True, (), {"head": "spark-lab-head"})
    assert len(two.measure(force=True).done) == 2
    two.pair.containers({"name": "/spark-lab-head", "record": OURS, "state": "exited"})
    assert len(two.measure().done) == 2


def test_a_rank_that_is_a_process_counts_too() -> None:
    two = Two()
    two.pair.worker["node"]["record"] = {"pid": 77}
    two.pair.worker["node"]["processes"]["list"] = [
        {"pid": 78, "kind": "engine", "name": "vllm", "user": "spark", "sid": 77, "container": None}
    ]
    assert two.measure().refused == {"worker": "pid 78 (vllm, user spark)"}


def test_a_node_that_did_not_answer_is_left_out() -> None:
    two = Two()
    gathered = Gathered({"head": recorded.facts("head", two.pair.head)}, {"worker": "no answer"})
    assert transfer.measure(two.cluster, gathered, force=False).done == ()


def test_an_address_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_WAIT_S", 0.5)
    two = Two()
    two.effective = effective("spark2", HEAD_IP=HEAD, WORKER_IP="192.0.2.7")
    two.cluster = Cluster(two.effective, two.cluster.nodes)
    first = two.measure().done[0]
    assert first.gbit_s is None
    assert "cannot listen on 192.0.2.7" in str(first.problem)


def test_a_stranger_is_not_taken_for_the_other_end() -> None:
    """A connection with another token is closed long before the wait is over, and the receiver takes the right one that comes later."""

    port, token = free_port(), "a" * 32
    request = {"action": "transfer_receive", "name": "r", "run_dir": "/tmp", "address": HEAD, "port": port, "token": token, "streams": 1}
    request |= {"wait_s": 60, "limit_s": 5}
    answers: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: answers.append(ask_agent(LocalTransport(), request, python="/usr/bin/python3")))
    waiting.start()
    with connected(port) as stranger:
        stranger.sendall(b"b" * 32)
        assert stranger.recv(1) == b""
    with connected(port) as right:
        right.sendall(token.encode() + b"12345")
    waiting.join()
    assert answers[0]["bytes"] == 5


def test_strangers_do_not_make_the_wait_longer() -> None:
    port = free_port()
    request = {"action": "transfer_receive", "name": "r", "run_dir": "/tmp", "address": HEAD, "port": port, "token": "a" * 32, "streams": 1}
    request |= {"wait_s": 1, "limit_s": 1}
    failure: list[LaunchError] = []

    def receive() -> None:
        try:
            ask_agent(LocalTransport(), request, python="/usr/bin/python3")
        except LaunchError as error:
            failure.append(error)

    waiting = threading.Thread(target=receive, daemon=True)
    waiting.start()
    until = time.monotonic() + 30
    while waiting.is_alive() and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((HEAD, port), timeout=2) as stranger:
            stranger.sendall(b"b" * 32)
            stranger.recv(1)
    assert "0 of 1 streams arrived in time" in str(failure[0])


def connected(port: int) -> socket.socket:
    """To a receiver that is being started; with a patience of ten seconds."""
    for _ in range(100):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((HEAD, port), timeout=10)
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port}")


# ib_write_bw


def test_what_perftest_prints() -> None:
    assert perftest_gbit_s(PERFTEST) == 12.99
    assert perftest_gbit_s("Couldn't connect to 10.0.0.2:20001\n") is None


def test_the_words_for_one_end() -> None:
    hca = Hca("rocep1s0f1", 1, "4: ACTIVE", None, "Ethernet", 200, None, None, {})
    assert transfer.words_of(hca, 3, 20001) == [
        "--ib-dev=rocep1s0f1", "--ib-port=1", "--gid-index=3", "--report_gbits", "--duration=2", "--size=65536", "--port=20001", "-F",
    ]  # fmt: skip
    assert "--gid-index" not in " ".join(transfer.words_of(hca, None, 20001))


@pytest.mark.usefixtures("short")
def test_ib_write_bw_where_both_nodes_have_it(tools: Path, tmp_path: Path) -> None:
    """The client is refused once, as when the other end is not there yet."""
    (tmp_path / "printed").write_text(PERFTEST)
    once = f'test -e {tmp_path}/second || {{ touch {tmp_path}/second; echo "Couldn\'t connect" >&2; exit 1; }}'
    tool(tools, "ib_write_bw", f'echo "$*" >> {tmp_path}/words; case "$*" in *127.0.0.*) {once};; esac; cat {tmp_path}/printed')
    two = Two()
    assert [each.way for each in two.measure().done] == ["TCP", "TCP"]
    for answer in (two.pair.head, two.pair.worker):
        answer["node"]["login"]["tools"]["ib_write_bw"] = "/usr/bin/ib_write_bw"
    rdma = [each for each in two.measure().done if each.way != "TCP"]
    assert [(each.way, each.gbit_s, each.link_gbit_s) for each in rdma] == [
        ("ib_write_bw rocep1s0f1", 12.99, 200), ("ib_write_bw rocep1s0f0", 12.99, 200),
    ]  # fmt: skip
    words = (tmp_path / "words").read_text()
    assert "--ib-dev=rocep1s0f0" in words
    assert f" -F {WORKER}\n" in words


@pytest.mark.usefixtures("short")
def test_ib_write_bw_that_fails_says_why(tools: Path) -> None:
    tool(tools, "ib_write_bw", 'echo "IB device rocep1s0f1 not found" >&2; exit 1')
    two = Two()
    for answer in (two.pair.head, two.pair.worker):
        answer["node"]["login"]["tools"]["ib_write_bw"] = "/usr/bin/ib_write_bw"
    first = next(each for each in two.measure().done if each.way != "TCP")
    assert first.gbit_s is None
    assert "not found" in str(first.problem)
