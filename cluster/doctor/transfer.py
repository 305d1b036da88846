"""Short transfers between the head and every other node: what a link moves, which no setting and no sysfs file tells.

Bounded: LIMIT_S or LIMIT_BYTES for each direction and way, whichever is first. Not while a rank of ours runs, unless forced.
ib_write_bw runs where both nodes have it; it was never run on RDMA hardware here.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from typing import Any

from cluster.doctor.checks_gpu import ours
from cluster.errors import LaunchError
from cluster.facts.node import Facts, Gathered
from cluster.facts.rdma import Hca, gid_index, matching
from cluster.facts.transfer import Transfer, Transfers, perftest_gbit_s
from cluster.plan import Step, request
from cluster.ranks import Rank
from cluster.session import Cluster

LIMIT_S, LIMIT_BYTES, STREAMS = 2, 4 << 30, 8
_WAIT_S, _TIMEOUT_S = 6, 25
_PORTS = (20000, 29000)  # below the range that kernels give to clients


def measure(cluster: Cluster, gathered: Gathered, *, force: bool) -> Transfers:
    """Head and every other node that answered, one direction after the other. Never raises for a transfer that failed."""
    running = {role: what for role, facts in gathered.nodes.items() if (what := occupied(facts))}
    if running and not force:
        return Transfers(True, (), running)
    by_role = {rank.role: rank for rank in cluster.ranks if rank.role in gathered.nodes and rank.node.ip}
    head = by_role.pop(cluster.head, None)
    pairs = [pair for other in by_role.values() if head for pair in ((head, other), (other, head))]
    done = [each for sender, receiver in pairs for each in _both_ways(cluster, gathered, sender, receiver)]
    return Transfers(True, tuple(done))


def occupied(facts: Facts) -> str:
    """What of ours runs on the node; empty when nothing does."""
    containers = [each.name for each in facts.docker.containers if each.record is not None and each.running]
    processes = [str(each) for each in facts.system.of_kind("engine") if ours(facts, each)]
    return ", ".join([*containers, *processes])


def _both_ways(cluster: Cluster, gathered: Gathered, sender: Rank, receiver: Rank) -> Iterator[Transfer]:
    yield _tcp(cluster, gathered, sender, receiver)
    ends = [_device(gathered.nodes[rank.role], rank) for rank in (sender, receiver)]
    if all(ends) and all(gathered.nodes[rank.role].system.login.tools.get("ib_write_bw") for rank in (sender, receiver)):
        yield _rdma(cluster, sender, receiver, [end for end in ends if end])


def link_gbit_s(gathered: Gathered, sender: Rank, receiver: Rank) -> float | None:
    """The slower end's link, by the device that has the route to the other end."""
    speeds = []
    for own, other in ((sender, receiver), (receiver, sender)):
        network = gathered.nodes[own.role].network
        route = network.routes.get(other.node.ip or "")
        face = network.interfaces.get((route.device if route else None) or "")
        speeds += [face.speed_mbit / 1000] if face and face.speed_mbit else []
    return min(speeds, default=None)


def _tcp(cluster: Cluster, gathered: Gathered, sender: Rank, receiver: Rank) -> Transfer:
    common = {"address": receiver.node.ip, "port": random.randint(*_PORTS), "token": secrets.token_hex(16), "streams": STREAMS}
    common |= {"wait_s": _WAIT_S, "limit_s": LIMIT_S}
    link = link_gbit_s(gathered, sender, receiver)
    steps = (
        _step(receiver, "transfer_receive", **common),
        _step(sender, "transfer_send", **common, source=sender.node.ip, limit_bytes=LIMIT_BYTES),
    )
    results = cluster.nodes.run(steps)
    told = results.answers.get(receiver.role)
    if told is None or not told["bytes"] or not told["seconds"]:
        return Transfer(sender.role, receiver.role, "TCP", link, problem=_why(results.failures.values()))
    rate = told["bytes"] * 8 / told["seconds"] / 1e9
    return Transfer(sender.role, receiver.role, "TCP", link, rate, told["bytes"], told["seconds"])


def _device(facts: Facts, rank: Rank) -> tuple[Hca, int | None] | None:
    """The first device that *_CX7_IB means, and the index of the rank's address in its table."""
    hcas = [hca for each in matching(facts.rdma, rank.node.cx7_ib).values() for hca in each]
    return (hcas[0], gid_index(facts.rdma, hcas[0].name, rank.node.ip or "", hcas[0].port)) if hcas else None


def _rdma(cluster: Cluster, sender: Rank, receiver: Rank, ends: list[tuple[Hca, int | None]]) -> Transfer:
    port = random.randint(*_PORTS)
    words = [words_of(hca, index, port) for hca, index in ends]
    more = {"wait_s": _WAIT_S, "limit_s": LIMIT_S}
    steps = (
        _step(receiver, "transfer_rdma", words=words[1], address=None, **more),
        _step(sender, "transfer_rdma", words=words[0], address=receiver.node.ip, **more),
    )
    results = cluster.nodes.run(steps)
    link = min((hca.rate_gbit for hca, _ in ends if hca.rate_gbit), default=None)
    rate = perftest_gbit_s((results.answers.get(sender.role) or {}).get("out", ""))
    problem = None if rate is not None else _why(results.failures.values())
    return Transfer(sender.role, receiver.role, f"ib_write_bw {ends[0][0].name}", link, rate, problem=problem)


def words_of(hca: Hca, index: int | None, port: int) -> list[str]:
    """perftest's words for one end: which device, port and GID, for how long, in Gb/s."""
    gid = [f"--gid-index={index}"] if index is not None else []
    common = ["--report_gbits", f"--duration={LIMIT_S}", "--size=65536", f"--port={port}", "-F"]
    return [f"--ib-dev={hca.name}", f"--ib-port={hca.port}", *gid, *common]


def _step(rank: Rank, action: str, **more: Any) -> Step:
    return Step(rank.role, "one end of a short transfer", request(rank, action, **more), _TIMEOUT_S)


def _why(failures: Any) -> str:
    """The first line of every failure: both ends' view of it."""
    lines = [str(error).splitlines() for error in failures if isinstance(error, LaunchError)]
    return (
        "; ".join(next((line for line in reversed(each) if line.strip() and "try:" not in line), "") for each in lines) or "nothing arrived"
    )
