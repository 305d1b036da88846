"""Memory, system, docker and storage."""

import json
from typing import Any

import pytest

from cluster.facts import docker, memory, storage, system
from cluster.facts.raw import Raw
from cluster.facts.system import Clock, clock_offset
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import ran


def raw(files: dict[str, str] | None = None, runs: dict[str, Any] | None = None, **node: Any) -> Raw:
    return Raw(files or {}, runs or {}, {"login": recorded.login(), **node})


def test_memory() -> None:
    files = {"/proc/meminfo": recorded.MEMINFO, "/proc/vmstat": "pgmajfault 77\noom_kill 2"}
    found = memory.parse(raw(files))
    assert (found.total_bytes, found.available_bytes, found.free_bytes) == (130662400000, 120832000000, 20480000000)
    assert (found.page_cache_bytes, found.swap_total_bytes, found.swap_used_bytes) == (98304000000, 17179865088, 0)
    assert (found.oom_kills, found.major_faults) == (2, 77)


def test_memory_without_its_lines() -> None:
    assert memory.parse(raw()) == memory.Memory(*[None] * 8)
    assert memory.parse(raw({"/proc/meminfo": "MemTotal: many kB\nSwapTotal: 5 kB"})).swap_used_bytes is None


def test_system() -> None:
    seen = recorded.facts("head", recorded.answer("head")).system
    assert (seen.kernel, seen.os, seen.boot_id) == ("6.17.0-1031-nvidia", "Ubuntu 24.04.3 LTS", "boot-of-head")
    assert (seen.uptime_s, seen.linger, seen.remove_ipc, seen.earlyoom) == (86400.0, False, True, False)
    assert (seen.target, seen.page_bytes, seen.late) == ("multi-user.target", 4096, ())


def test_system_where_nothing_could_be_read() -> None:
    seen = system.parse(raw(runs={"linger": None, "earlyoom": None}), None)
    assert (seen.kernel, seen.os, seen.uptime_s, seen.linger, seen.remove_ipc, seen.earlyoom) == (None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("told", "configured", "dropped_in", "expected"),
    [
        ("b false\n", "RemoveIPC=yes", None, False),  # what logind says wins over its files
        (None, "[Login]\n#RemoveIPC=yes", None, None),
        (None, "[Login]\nRemoveIPC=no", None, False),
        (None, "[Login]\nRemoveIPC=yes", "[Login]\nRemoveIPC=no", False),
        (None, "", "[Login]\n RemoveIPC = yes", True),
    ],
)
def test_remove_ipc(told: str | None, configured: str, dropped_in: str | None, expected: bool | None) -> None:
    files = {"/etc/systemd/logind.conf": configured}
    files |= {"/etc/systemd/logind.conf.d/10-ipc.conf": dropped_in} if dropped_in else {}
    assert system.parse(raw(files, {"remove-ipc": ran(told) if told else None}), None).remove_ipc is expected


def test_commands_that_hung_are_named() -> None:
    runs = {"gpu": ran("", code=None, err="no answer within 6 s"), "addr": ran("[]"), "ibdev2netdev": None}
    assert system.parse(raw(runs=runs), None).late == ("gpu",)


def test_the_clock_is_bounded_by_the_times_around_the_request() -> None:
    """Sent at 100, read at 107 and 108 over there, answered at 102: between 6 and 7 s ahead."""
    assert clock_offset(100, 107, 108, 102) == Clock(6, 7)
    near = clock_offset(100, 100.25, 100.75, 101)
    assert (near.low_s, near.high_s) == (-0.25, 0.25)


def test_docker() -> None:
    record = json.dumps({"kit": "spark2", "rank": 1})
    lines = recorded.container() + recorded.container(name="/spark-lab-head", record=record, gpu=[{"Count": -1}]) + "not json\n"
    runs = {"docker-info": ran(json.dumps(recorded.INFO)), "image": ran(recorded.image(env=["A=1=2", "B"])), "containers": ran(lines)}
    found = docker.parse(raw(runs=runs))
    assert (found.answers, found.version, found.rootless, found.runtimes) == (
        True,
        "29.2.1",
        False,
        ("io.containerd.runc.v2", "nvidia", "runc"),
    )
    assert found.image is not None
    assert (dict(found.image.env), found.image.architecture, len(found.image.layers)) == ({"A": "1=2", "B": ""}, "arm64", 2)
    assert [(each.name, each.record, each.gpu) for each in found.containers] == [
        ("other", None, False),
        ("spark-lab-head", {"kit": "spark2", "rank": 1}, True),
    ]


def test_the_image_key_is_that_of_the_layers() -> None:
    """The id differs between storage drivers, the diff-ids do not."""
    keys = [
        docker.parse(raw(runs={"docker-info": ran("{}"), "image": ran(recorded.image(**row))})).image for row in ({}, {"id": "sha256:2222"})
    ]
    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0].key == keys[1].key == "99f244ced4b43fc0"


def test_docker_that_does_not_answer() -> None:
    down = docker.parse(raw(runs={"docker-info": ran("", code=1, err="Cannot connect to the Docker daemon")}))
    assert (down.installed, down.answers, down.problem, down.image) == (True, False, "Cannot connect to the Docker daemon", None)
    polite = docker.parse(raw(runs={"docker-info": ran('{"ServerErrors": ["Cannot connect"]}')}))
    assert polite.problem == "Cannot connect"
    none = docker.parse(raw())
    assert (none.installed, none.answers) == (False, False)


def test_rootless() -> None:
    info = {**recorded.INFO, "SecurityOptions": ["name=seccomp", "name=rootless"]}
    assert docker.parse(raw(runs={"docker-info": ran(json.dumps(info))})).rootless is True
    assert docker.parse(raw(runs={"docker-info": ran("{}")})).rootless is None


def test_storage() -> None:
    rest = {"path": "/h/hub/models--m/blobs/x.incomplete", "age_s": 7.0, "bytes": 5, "held": False}
    models = {"model": recorded.model(), "short": {**recorded.model(), "missing": ["model-2.safetensors"]}}
    found = storage.parse(raw(folders={"hf_home": recorded.folder("~/x", 5, kind="nfs4")}, models=models, hub_rests=[rest]))
    assert (found.folders["hf_home"].shared, found.folders["hf_home"].free_bytes) == (True, 5)
    assert [model.complete for model in found.models.values()] == [True, False]
    assert not found.rests[0].is_lock
    assert storage.parse(raw()) == storage.Storage({}, {}, ())


@pytest.mark.parametrize("changed", [{"exists": False}, {"config": False}, {"named": 0}, {"index": None}, {"empty": ["a"]}])
def test_when_weights_are_not_complete(changed: dict[str, Any]) -> None:
    assert not storage.parse(raw(models={"model": {**recorded.model(), **changed}})).models["model"].complete
