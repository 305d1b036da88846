"""What must not be found on a node, and nodes of which little or nothing is known."""

from __future__ import annotations

import json
import time
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from cluster.doctor.examine import examine
from cluster.facts.node import Gathered, read
from cluster.facts.system import Clock
from tests.cluster.doctor.changes import HALF, LOCK, OURS, logged_in, put
from tests.cluster.doctor.scenes import HEALTHY, Change, Pair, changed, found
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import ran
from tests.cluster.plans import effective

# GPUs


@pytest.mark.parametrize(
    ("head", "worker", "slow"),
    [
        ({"clock": "208 MHz"}, {"clock": "2400 MHz", "use": " 95 %", "power": "70 W"}, set()),  # idle: not judged
        ({"clock": "2000 MHz", "use": " 95 %", "power": "70 W"}, {"clock": "2400 MHz", "use": " 95 %", "power": "70 W"}, set()),
        ({"clock": "1399 MHz", "use": " 95 %", "power": "70 W"}, {"clock": "2000 MHz", "use": " 95 %", "power": "70 W"}, {"head"}),
        ({"clock": "1500 MHz", "use": " 95 %", "power": "70 W"}, {"clock": "2600 MHz", "use": " 95 %", "power": "70 W"}, {"head"}),
        ({"clock": "900 MHz", "use": " 95 %", "power": "70 W"}, {"clock": "900 MHz", "use": " 95 %", "power": "70 W"}, {"head", "worker"}),
    ],
)
def test_clocks_under_load(head: dict[str, str], worker: dict[str, str], slow: set[str]) -> None:
    pair = changed(lambda p: p.gpu(**head), lambda p: p.gpu("worker", **worker))
    assert {finding.where for finding in pair.findings() if finding.id == "gpu-slow"} == slow


def test_a_gpu_that_hangs_is_late_not_absent() -> None:
    assert found(put("head", "runs", "gpu", ran("", code=None))) - HEALTHY == {"facts-late"}


def test_a_driver_that_does_not_know_a_column_has_a_gpu_all_the_same() -> None:
    told = ran("", code=2, err='Field "clocks.sm" is not a valid field to query.')
    assert "gpu-none" not in found(put("head", "runs", "gpu", told))


def test_an_older_kernel_of_the_same_line_is_not_the_bad_one() -> None:
    for kernel in ("7.0.0-30-generic", "7.0.0-310-generic", "17.0.0-31-generic"):
        assert "known-bad-version" not in found(put("head", "files", "/proc/sys/kernel/osrelease", kernel))


# Sessions


def rootless(pair: Pair) -> None:
    pair.head["runs"]["docker-info"] = ran(json.dumps({**recorded.INFO, "SecurityOptions": ["name=rootless"]}))


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ((), False),  # containers run as root: logind leaves root's shared memory alone
        ((rootless,), True),
        ((lambda p: p.image(user="vllm"),), True),
        ((lambda p: p.image(user="0"),), False),
        ((lambda p: p.image(user="vllm"), put("head", "runs", "linger", ran("Linger=yes\n"))), False),
        ((lambda p: p.image(user="vllm"), put("head", "runs", "remove-ipc", ran("b false\n"))), False),
        ((lambda p: p.image(user="vllm"), put("head", "runs", "remove-ipc", None)), True),
        ((lambda p: p.image(user="vllm"), logged_in(uid=0)), False),
        ((lambda p: p.image(user="vllm"), put("head", "runs", "linger", None)), False),  # no logind
    ],
)
def test_linger(changes: tuple[Change, ...], warned: bool) -> None:
    assert ("linger" in found(*changes)) is warned


# Time, locks, downloads


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (Clock(-0.5, 2.0), ""),
        (Clock(-2.0, 0.9), ""),
        (Clock(-3.5, -2.5), "3.0 s behind"),
        (Clock(1.2, 1.4), "1.3 s ahead of"),
        (Clock(0.8, 1.1), ""),
    ],
)
def test_a_clock_is_wrong_only_when_that_is_certain(clock: Clock, words: str) -> None:
    said = [finding.what for finding in Pair(clock=clock).findings() if finding.id == "clock-skew"]
    assert bool(said) is bool(words)
    assert all(words in what for what in said)


@pytest.mark.parametrize("text", ["", "{}", "nonsense", json.dumps({"owner": "eve", "until_unix_s": time.time() - 1})])
def test_a_launch_lock_that_is_over(text: str) -> None:
    assert "launch-lock" not in found(put("head", "node", "lock", text))


@pytest.mark.parametrize("rests", [[LOCK], [{**HALF, "age_s": 20.0}], [{**HALF, "held": True}, {**LOCK, "held": True}]])
def test_downloads_that_are_over_or_going_on(rests: list[dict[str, Any]]) -> None:
    """A finished download leaves its lock files behind; a running one writes or holds its lock."""
    assert found(put("head", "node", "hub_rests", rests)) == HEALTHY


def test_a_boot_before_the_record_is_as_it_should_be() -> None:
    assert "node-restarted" not in found(lambda p: p.containers({"name": "/spark-lab-head", "record": OURS}))


@pytest.mark.parametrize(("before_s", "restarted"), [(-30, False), (30, False), (90, True)])
def test_a_record_of_about_the_boots_own_time_is_no_sign(before_s: float, restarted: bool) -> None:
    """The node is up for 86400 s; the clocks are only known to a second or so."""
    record = json.dumps({"kit": "spark2", "boot": "b0", "started_unix_s": time.time() - 86400 - before_s})
    assert ("node-restarted" in found(lambda p: p.containers({"name": "/spark-lab-head", "record": record}))) is restarted


def test_a_full_disk_matters_only_where_something_will_be_written() -> None:
    """The weights are complete: no 180 GiB are needed any more."""
    assert found(lambda p: p.folder("hf_home", free_bytes=0), lambda p: p.folder("docker", free_bytes=0)) == HEALTHY


@pytest.mark.parametrize(
    ("changed_model", "words"),
    [
        ({"index": None}, "cannot be read"),
        ({"config": False}, "no config.json"),
        ({"named": 0, "index": False}, "no weights in it"),
        ({"empty": ["model-00001.safetensors"]}, "1 files are missing, empty or links to nowhere (model-00001.safetensors)"),
    ],
)
def test_what_the_weights_lack(changed_model: dict[str, Any], words: str) -> None:
    (lack,) = [f.what for f in changed(lambda p: p.model(**changed_model)).findings() if f.id == "weights-incomplete"]
    assert words in lack


# Nodes that do not answer, and nodes of which nothing is known


def test_the_other_nodes_are_judged_all_the_same() -> None:
    pair = changed(lambda p: p.failures.update(worker="worker: gone\ntry: x"), lambda p: p.links(up=False))
    assert [(f.id, f.where) for f in pair.findings() if f.level == "error"] == [("node-unreachable", "worker"), ("link-down", "head")]


def test_errors_come_first() -> None:
    levels = [f.level for f in changed(lambda p: p.links(up=False), logged_in(user="x"), lambda p: p.gpu(temperature=" 91,")).findings()]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert len({*levels}) == 3


def test_a_machine_without_spark_hardware_is_fine() -> None:
    """The twin's hosts: no RDMA, no GPU, amd64, MTU 1500."""
    told = {role: recorded.answer(role) for role in ("head", "worker")}
    for number, answer in enumerate(told.values(), 1):
        answer["node"]["nccl"]["libraries"] = []
        answer["files"] = {path: text for path, text in answer["files"].items() if "/infiniband/" not in path}
        answer["runs"] |= dict.fromkeys(("gpu", "gpu-reasons", "gpu-apps", "ibdev2netdev", "linger", "remove-ipc"))
        answer["runs"] |= {
            "addr": ran(json.dumps([recorded.interface("eth0", f"10.77.0.{number}", mtu=1500)])),
            "image": ran(recorded.image(arch="amd64")),
        }
    nodes = {role: recorded.facts(role, answer) for role, answer in told.items()}
    assert {f.id for f in examine(effective("twin"), Gathered(nodes))} == {"memory", "settings-advice"}


def bare(role: str) -> dict[str, Any]:
    """A node on which no tool is there and no file can be read."""
    told = recorded.answer(role)
    told["runs"] = dict.fromkeys(told["runs"])
    del told["runs"]["docker-info"]
    keep = {"login": recorded.login(), "ports": {}, "processes": {"list": [], "zombies": 0}}
    return {**told, "files": {}, "node": keep}


def test_nothing_known_is_no_reason_to_fail_or_to_guess() -> None:
    nodes = {role: read(role, bare(role)) for role in ("head", "worker")}
    assert {f.id for f in examine(effective("twin"), Gathered(nodes))} == {"docker-missing", "settings-advice"}
    spark = {f.id for f in examine(effective("spark2"), Gathered(nodes))}
    assert spark == {"docker-missing", "gpu-none", "hca-absent", "settings-advice"}


OUTPUTS = [None, *map(ran, ("", "[]", "{}", "null", "7", "[7]", "a,b\n1,2")), ran("", 1, "no"), ran("", None)]


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_no_odd_file_or_output_raises(data: st.DataObject) -> None:
    told = recorded.answer("head")
    odd: dict[str, list[Any]] = {"files": ["", "-", "garbage 7"], "runs": OUTPUTS}
    for part, values in odd.items():
        for key in sorted(data.draw(st.sets(st.sampled_from(sorted(told[part]))))):
            told[part][key] = data.draw(st.sampled_from(values))
    examine(effective("spark2"), Gathered({"head": read("head", told)}))
