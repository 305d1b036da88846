"""Cases: reaching the nodes, the network, the RoCE devices."""

from __future__ import annotations

import json

from cluster.facts.system import Clock
from tests.cluster.doctor.changes import (
    RAILS,
    Case,
    both,
    configured,
    fails,
    logged_in,
    ported,
    put,
    table,
    twin_rail,
)
from tests.cluster.doctor.scenes import HEAD_IF
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import interface, ran

REACH = (
    Case(
        "settings-refused",
        "settings",
        configured(QUANTIZATION="awq"),
        ("quantization: QUANTIZATION is awq (environment)", "QUANTIZATION=exl3"),
    ),
    Case("settings-advice", "settings", lambda p: None, ("open-api: HOST is 0.0.0.0", "VLLM_API_KEY=")),
    Case(
        "node-unreachable",
        "worker",
        fails("worker: the node agent could not facts_collect spark-lab-worker (port 22 takes no connection (refused))\ntry: start sshd"),
        ("port 22 takes no connection (refused) | start sshd",),
    ),
    Case("host-key-unknown", "worker", fails("worker: the host key of w is unknown: x\ntry: invoke trust"), ("is unknown", "invoke trust")),
    Case("host-key-changed", "worker", fails("worker: the host key of w has CHANGED: x\ntry: ssh-keygen -R"), ("CHANGED", "ssh-keygen -R")),
    Case(
        "ssh-login",
        "worker",
        lambda p: p.notes.update(worker=("the ssh agent at /a was left out: timed out",)),
        ("left out", "SSH_AUTH_SOCK"),
    ),
    Case("facts-late", "head", put("head", "runs", "gpu", ran("", code=None)), ("no answer in time from: gpu",)),
    Case("clock-skew", "head", lambda p: setattr(p, "clock", Clock(2.9, 3.1)), ("3.0 s ahead", "at most 1 s", "set-ntp")),
    Case("users-differ", "cluster", logged_in(user="anna"), ("head anna, worker spark",)),
    Case(
        "tool-not-on-path", "head", lambda p: p.head["node"]["login"]["tools"].update(docker=None), ("docker is at /usr/bin/docker", "PATH")
    ),
    Case("rsync-missing", "head", lambda p: [p.head["node"]["login"][k].pop("rsync") for k in ("tools", "elsewhere")], ("no rsync", "apt")),
)

NETWORK = (
    Case(
        "address-absent", "head", lambda p: p.links(address="10.0.0.9"), ("HEAD_IP is 10.0.0.1", "10.0.0.9 on enp1s0f1np1", "set HEAD_IP")
    ),
    Case(
        "address-on-lo",
        "head",
        lambda p: p.head["runs"].update(addr=ran(json.dumps([{**recorded.LO, "addr_info": [{"family": "inet", "local": "10.0.0.1"}]}]))),
        ("HEAD_IP 10.0.0.1 is an alias on lo",),
    ),
    Case("device-placeholder", "head", configured(HEAD_CX7_IF="enpXsYfZnpZ"), ("HEAD_CX7_IF is enpXsYfZnpZ", f"HEAD_CX7_IF={HEAD_IF}")),
    Case("device-absent", "head", configured(HEAD_CX7_IF="enp2s0"), ("there are enP7s7, enp1s0f1np1", f"HEAD_CX7_IF={HEAD_IF}")),
    Case("device-other", "head", configured(HEAD_CX7_IF="enP7s7"), ("but 10.0.0.1 is on enp1s0f1np1", f"HEAD_CX7_IF={HEAD_IF}")),
    Case("link-down", "head", lambda p: p.links(up=False), ("enp1s0f1np1 has no carrier; expected: up", "seat the cable")),
    Case("link-slow", "head", put("head", "files", f"/sys/class/net/{HEAD_IF}/speed", "25000"), ("runs at 25 Gb/s",)),
    Case("fabric-wireless", "head", put("head", "node", "wireless", [HEAD_IF]), ("enp1s0f1np1 is wireless", "*_CX7_IF")),
    Case("fabric-default-route", "head", put("head", "runs", "default", ran(json.dumps([{"dev": HEAD_IF}]))), ("has the default route",)),
    Case(
        "route-none", "head", put("head", "runs", "route 10.0.0.2", ran("", 2, "Network is unreachable")), ("no route to worker 10.0.0.2",)
    ),
    Case("route-other", "head", lambda p: p.route(dev="wlP9s9"), ("worker 10.0.0.2 is reached by wlP9s9; expected enp1s0f1np1",)),
    Case(
        "peer-silent",
        "head",
        put("head", "node", "reach", {"10.0.0.2": {"ping": None, "tcp": "timed out"}}),
        ("does not answer", "WORKER_IP"),
    ),
    Case("mtu-mismatch", "cluster", lambda p: p.links(mtu=1500), ("head 1500, worker 9000", "mtu 9000")),
    Case(
        "mtu-small",
        "worker",
        both(
            lambda p: p.links(mtu=4200),
            lambda p: p.worker["runs"].update(addr=ran(json.dumps([interface("enp1s0f0np0", "10.0.0.2", mtu=4200)]))),
        ),
        ("MTU 4200; expected 9000",),
    ),
    Case(
        "path-mtu", "head", put("head", "node", "reach", {"10.0.0.2": {"ping": {"small": 0, "full": 1, "mtu": 9000}}}), ("packets of 9000",)
    ),
    Case(
        "same-subnet", "head", lambda p: p.links(interface("enP2p1s0f1np1", "10.0.0.3")), ("enP2p1s0f1np1 and enp1s0f1np1", "10.0.0.0/24")
    ),
    Case("nccl-exported", "head", logged_in(steering={"NCCL_IB_HCA": "mlx5_0"}), ("NCCL_IB_HCA=mlx5_0", "unset")),
)

RDMA = (
    Case("hca-placeholder", "head", configured(HEAD_CX7_IB="rocepXsYfZ"), ("HEAD_CX7_IB names rocepXsYfZ", "HEAD_CX7_IB=rocep1s0f1")),
    Case("hca-absent", "head", configured(HEAD_CX7_IB="rocep9s0f1"), ("there are rocep1s0f1", "HEAD_CX7_IB=rocep1s0f1")),
    Case("hca-down", "head", ported(up=False), ("rocep1s0f1 is 1: DOWN (3: Disabled); expected ACTIVE",)),
    Case("hca-slow", "head", put("head", "files", "/sys/class/infiniband/rocep1s0f1/ports/1/rate", "40 Gb/sec (4X QDR)"), ("has 40 Gb/s",)),
    Case("hca-unset", "head", configured(HEAD_CX7_IB=""), ("active are rocep1s0f1", "HEAD_CX7_IB=rocep1s0f1")),
    Case("hca-other", "head", both(twin_rail(), configured(HEAD_CX7_IB="roceP2p1s0f1")), ("over rocep1s0f1", "HEAD_CX7_IB=rocep1s0f1")),
    Case(
        "hca-no-address",
        "head",
        both(twin_rail(address=None), RAILS),
        ("roceP2p1s0f1 (enP2p1s0f1np1) has no IPv4 address", "take roceP2p1s0f1 out"),
    ),
    Case("gid-missing", "head", table("10.0.0.77"), ("no RoCE v2 entry for 10.0.0.1", "3: RoCE v2 ::ffff:10.0.0.77", "eui64")),
    Case(
        "gid-wrong",
        "head",
        both(ported(pairs=2), configured(NCCL_IB_GID_INDEX="3")),
        ("NCCL_IB_GID_INDEX is 3", "fe80::", "right is 5", "HEAD_GID=5"),
    ),
    Case(
        "gid-split",
        "head",
        both(twin_rail(pairs=2), RAILS, configured(HEAD_GID="3")),
        ("rocep1s0f1 3, roceP2p1s0f1 5", "HEAD_CX7_IB=rocep1s0f1 and HEAD_GID=3"),
    ),
    Case("gid-auto", "head", lambda p: None, ("right would be rocep1s0f1 3", "HEAD_GID=3")),
    Case("gid-link-local-twice", "head", ported(pairs=2), ("2 link-local GIDs", "ipv6.addr-gen-mode eui64")),
    Case(
        "second-rail",
        "head",
        twin_rail(),
        ("roceP2p1s0f1 (enP2p1s0f1np1) is active with 10.0.1.1/24", "HEAD_CX7_IB=rocep1s0f1,roceP2p1s0f1"),
    ),
    Case(
        "firmware-mismatch",
        "cluster",
        put("head", "files", "/sys/class/infiniband/rocep1s0f1/fw_ver", "28.40.1000"),
        ("head 28.40.1000, worker 28.45.4028",),
    ),
)
