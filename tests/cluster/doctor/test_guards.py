"""What must not be found: healthy fabrics that look odd, our own ranks. And what is told apart."""

from __future__ import annotations

import json
import time

import pytest

from tests.cluster.doctor.changes import OURS, RAILS, configured, ported, put, twin_rail
from tests.cluster.doctor.scenes import HEALTHY, Pair, changed, found, ids
from tests.cluster.facts import recorded

# GID indexes


def test_the_index_is_judged_for_each_rank() -> None:
    """5 on the head, 3 on the worker: the common 3 is wrong on the head alone; its own index puts it right."""
    pair = changed(ported(pairs=2), configured(NCCL_IB_GID_INDEX="3"))
    assert "gid-wrong" in ids(pair, "head")
    assert "gid-wrong" not in ids(pair, "worker")
    pair.settings["HEAD_GID"] = "5"
    assert "gid-wrong" not in ids(pair, "head")
    pair.settings["WORKER_GID"] = "5"
    assert "gid-wrong" in ids(pair, "worker")


def test_two_rails_with_one_index_are_fine() -> None:
    assert found(twin_rail(), RAILS, configured(HEAD_GID="3")) == HEALTHY


def test_two_rails_without_a_common_index_are_fine_when_none_is_set() -> None:
    (auto,) = [f for f in changed(twin_rail(pairs=2), RAILS).findings() if (f.id, f.where) == ("gid-auto", "head")]
    assert "rocep1s0f1 3, roceP2p1s0f1 5" in auto.what
    assert auto.hint == "nothing: no single index would be right"
    assert "gid-split" not in found(twin_rail(pairs=2), RAILS)


def test_the_zero_entry_is_called_empty() -> None:
    (wrong,) = [f for f in changed(configured(HEAD_GID="7")).findings() if f.id == "gid-wrong"]
    assert wrong.what == "HEAD_GID is 7: on rocep1s0f1 that is empty; right is 3 (RoCE v2 ::ffff:10.0.0.1)"


def test_a_bond_carries_the_address_of_its_device() -> None:
    """The RoCE device's own network device has no address then; the entry is right all the same."""

    def bonded(pair: Pair) -> None:
        pair.links(recorded.interface("bond0", "10.0.0.1"), address=None)
        pair.route(dev="bond0", prefsrc="10.0.0.1")

    assert not {"gid-missing", "hca-no-address", "gid-wrong"} & found(bonded, configured(HEAD_GID="3"))
    assert "gid-wrong" in found(bonded, configured(HEAD_GID="5"))


def test_a_name_may_be_the_beginning_of_several() -> None:
    """NCCL takes it so, unless `=` stands in front."""
    assert found(twin_rail(), configured(HEAD_CX7_IB="roce")) == HEALTHY
    assert "hca-absent" in found(configured(HEAD_CX7_IB="=roce"))
    assert found(configured(HEAD_CX7_IB="=rocep1s0f1:1")) == HEALTHY
    assert "hca-absent" in found(configured(HEAD_CX7_IB="rocep1s0f1:2"))


def test_infiniband_has_no_roce_index() -> None:
    link = put("head", "files", "/sys/class/infiniband/rocep1s0f1/ports/1/link_layer", "InfiniBand")
    pair = changed(link, configured(HEAD_GID="0"))
    assert not {"gid-wrong", "gid-missing", "gid-auto"} & ids(pair, "head")


# Networks


@pytest.mark.parametrize("kit", ["spark3", "ring4"])
def test_a_cable_for_each_pair_needs_no_common_device(kit: str) -> None:
    """In a triangle or ring the way to a peer may well be by another device than that of the node's address."""
    assert "route-other" not in found(lambda p: p.route(dev="enp1s0f0np0"), kit=kit)
    assert "route-other" in found(lambda p: p.route(dev="enp1s0f0np0"))


def test_a_gateway_on_the_way_is_named_in_any_topology() -> None:
    assert "route-other" in found(lambda p: p.route(dev="enp1s0f1np1", gateway="10.0.0.254"), kit="spark3")


@pytest.mark.parametrize("kit", ["spark3", "ring4"])
def test_the_address_may_be_on_the_management_network_there(kit: str) -> None:
    """Gloo meets on it, with MTU 1500, 1 Gb/s and the default route; the cables are judged by their RoCE devices."""

    def managed(pair: Pair) -> None:
        pair.settings |= {"HEAD_IP": "192.168.1.11", "HEAD_CX7_IF": "enP7s7", "HEAD_CX7_IB": "rocep1s0f1", "WORKER_CX7_IB": "rocep1s0f0"}

    odd = {"mtu-mismatch", "mtu-small", "fabric-default-route", "link-slow", "device-other"}
    assert not odd & found(managed, kit=kit)
    assert "mtu-mismatch" in found(managed, lambda p: p.links(mtu=4200), kit=kit)
    assert {"fabric-default-route", "link-slow", "mtu-mismatch"} <= found(managed)


def test_an_mtu_that_is_the_same_everywhere_is_no_mismatch() -> None:
    pair = Pair(settings={"WORKER_IP": "10.0.0.77"})  # an address that the worker has not: nothing to compare
    pair.links(mtu=1500)
    assert "mtu-mismatch" not in {finding.id for finding in pair.findings()}


def test_unknown_addresses_are_not_absent_ones() -> None:
    assert "address-absent" not in found(put("head", "runs", "addr", None))


# Our own ranks


def ours(pair: Pair) -> None:
    """Rank 0 runs in our container, on the GPU, and holds its ports."""
    pair.containers({"name": "/spark-lab-head", "record": OURS, "gpu": [{"Count": -1}]})
    pair.app("98304 MiB", container="c" * 64)
    pair.process(name="vllm", container="c" * 64)
    pair.head["node"]["ports"]["8888"] = {"pid": 4242, "sid": 4242, "user": "root"}


def test_our_own_rank_is_no_stranger() -> None:
    assert found(ours) == HEALTHY


def test_our_own_rank_as_a_process() -> None:
    def as_process(pair: Pair) -> None:
        pair.head["node"]["record"] = {
            "pid": 4242,
            "kit": "spark2",
            "boot": "b0",
            "kernel_boot_id": "boot-of-head",
            "started_unix_s": time.time(),
        }
        pair.app("98304 MiB", sid=4242)
        pair.head["node"]["ports"]["8888"] = {"pid": 4250, "sid": 4242, "user": "spark"}

    assert found(as_process) == HEALTHY


def test_a_record_of_another_boot() -> None:
    record = {"pid": 1, "kit": "spark2", "boot": "b0", "kernel_boot_id": "another", "started_unix_s": time.time()}
    assert "node-restarted" in found(put("head", "node", "record", record))


def test_a_stranger_beside_our_rank_is_still_found() -> None:
    assert "gpu-busy" in found(ours, lambda p: p.app("98304 MiB", container="d" * 64, pid=4242))


def test_an_engine_of_unknown_size_counts_as_large() -> None:
    """The driver of a GB10 does not say how much a process holds."""
    assert "gpu-busy" in found(lambda p: p.app("[N/A]", "VLLM::EngineCore", user="eve"))
    assert "gpu-shared" in found(lambda p: p.app("[N/A]", "/usr/bin/nvtop", user="eve"))


def test_foreign_containers_without_gpu_are_nobodys_business() -> None:
    assert found(lambda p: p.containers({"name": "/registry"})) == HEALTHY
    assert found(lambda p: p.containers({"gpu": [{"Count": -1}], "state": "exited"})) == HEALTHY


def test_our_container_that_ended_is_no_other_kit() -> None:
    record = json.dumps({"kit": "spark3", "started_unix_s": time.time()})
    assert "container-other-kit" not in found(lambda p: p.containers({"name": "/spark-lab-head", "record": record, "state": "exited"}))
