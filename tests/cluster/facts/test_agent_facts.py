"""The agent's look at a real node: this machine, and this machine with tools that hang, lie or are not there."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cluster import session
from cluster.agent_client import ask_agent
from cluster.facts.node import gather, read
from cluster.facts.request import facts_step
from cluster.ranks import ranks
from cluster.settings import load
from cluster.transport import LocalTransport
from tests.cluster.plans import NOWHERE, effective


@pytest.fixture
def request_(tmp_path: Path) -> dict[str, Any]:
    """A request about nothing in particular."""
    common: dict[str, Any] = {"action": "facts_collect", "name": "rank0", "run_dir": str(tmp_path), "peers": [], "image": None, "ports": []}
    return {**common, "folders": {}, "models": {}, "hub": None}


def ask(request: dict[str, Any]) -> dict[str, Any]:
    return ask_agent(LocalTransport(), request, python="/usr/bin/python3")


def tool(folder: Path, name: str, script: str) -> None:
    """A tool of that name, first on the PATH."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_this_machine(request_: dict[str, Any]) -> None:
    facts = read("local", ask(request_))
    assert facts.memory.total_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert facts.system.kernel == os.uname().release
    assert facts.system.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.system.login.uid == os.getuid()
    assert "lo" in facts.network.interfaces
    assert facts.system.late == ()


def test_looking_makes_nothing(request_: dict[str, Any], tmp_path: Path) -> None:
    """Neither the state folder, nor caches, nor the lock file."""
    before = files(tmp_path)
    absent = {label: str(tmp_path / label) for label in ("state", "hf_home", "cache_root")}
    answer = ask(
        {
            **request_,
            "run_dir": str(tmp_path / "run"),
            "folders": absent,
            "models": {"model": str(tmp_path / "m")},
            "hub": str(tmp_path / "hub"),
        }
    )
    assert files(tmp_path) == before
    facts = read("local", answer)
    assert [folder.exists for folder in facts.storage.folders.values()][:3] == [False] * 3
    assert {folder.real for label, folder in facts.storage.folders.items() if label in absent} == {str(tmp_path.resolve())}
    assert not facts.storage.models["model"].exists


def test_a_tool_that_hangs_costs_its_limit_and_is_named(request_: dict[str, Any], tools: Path) -> None:
    tool(tools, "nvidia-smi", "exec sleep 60")
    begin = time.monotonic()
    facts = read("local", ask(request_))
    assert 5 < time.monotonic() - begin < 15
    assert {"gpu", "gpu-apps", "gpu-reasons"} <= set(facts.system.late)
    assert facts.gpu is None
    assert facts.memory.total_bytes


def test_tools_that_fail_or_talk_nonsense(request_: dict[str, Any], tools: Path) -> None:
    for name, script in {
        "nvidia-smi": "echo no >&2; exit 9",
        "ip": "echo [",
        "docker": "echo; exit 0",
        "loginctl": r"printf '\377\376'",
    }.items():
        tool(tools, name, script)
    facts = read("local", ask({**request_, "peers": ["10.0.0.2"], "image": "x:1"}))
    assert (facts.gpu, facts.network.known, facts.docker.image, facts.system.linger) == (None, False, None, None)


def test_no_tool_at_all(request_: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = read("local", ask({**request_, "peers": ["127.0.0.1"], "image": "x:1"}))
    assert (facts.gpu, facts.network.known, facts.docker.installed, facts.system.login.tools["ip"]) == (None, False, False, None)
    assert facts.network.reach["127.0.0.1"].small is None


def test_a_command_line_is_not_told(request_: dict[str, Any]) -> None:
    """It may hold a key; of variables only those that steer NCCL are read."""
    words = ["python3", "-c", "import time; time.sleep(60)", "vllm serve", "--api-key=hunter2-hunter2"]
    env = {**os.environ, "SECRET_TOKEN": "hunter3-hunter3"}
    with subprocess.Popen(words, env=env) as engine:
        time.sleep(0.3)
        answer = ask(request_)
        engine.kill()
    facts = read("local", answer)
    assert engine.pid in {process.pid for process in facts.system.of_kind("engine")}
    assert "hunter" not in json.dumps(answer)


def test_steering_variables(request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("NOT_NCCL_X", "1")
    assert read("local", ask(request_)).system.login.steering == {"NCCL_IB_HCA": "mlx5_0"}


def test_ports_and_their_holders(request_: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        facts = read("local", ask({**request_, "ports": [port, 1]}))
    holder = facts.ports[port]
    assert holder is not None
    assert holder["pid"] == os.getpid()
    assert facts.ports[1] is None


def test_how_a_peer_answers(request_: dict[str, Any]) -> None:
    """127.0.0.1 answers or refuses at once; 192.0.2.0/24 is nobody's."""
    begin = time.monotonic()
    reach = read("local", ask({**request_, "peers": ["127.0.0.1"]})).network.reach
    assert reach["127.0.0.1"].tcp in ("open", "refused")
    assert not reach["127.0.0.1"].silent
    assert time.monotonic() - begin < 10


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model of two files, as its index says, beside which a download was interrupted."""
    at = tmp_path / "hub/models--m/snapshots/abc"
    (tmp_path / "hub/models--m/blobs").mkdir(parents=True)
    at.mkdir(parents=True)
    (at / "config.json").write_text("{}")
    (at / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-2.safetensors"}})
    )
    for number in (1, 2):
        (at / f"m-{number}.safetensors").write_bytes(b"x" * number)
    return at


def model(request_: dict[str, Any], at: Path) -> Any:
    return read("local", ask({**request_, "models": {"model": str(at)}})).storage.models["model"]


def test_weights(request_: dict[str, Any], snapshot: Path) -> None:
    found = model(request_, snapshot)
    assert (found.named, found.total_bytes, found.complete) == (2, 3, True)
    (snapshot / "m-2.safetensors").write_bytes(b"")
    assert model(request_, snapshot).missing == ("m-2.safetensors",)
    (snapshot / "m-2.safetensors").unlink()
    (snapshot / "m-2.safetensors").symlink_to("../../blobs/gone")
    assert model(request_, snapshot).missing == ("m-2.safetensors",)
    (snapshot / "model.safetensors.index.json").write_text("{")
    assert model(request_, snapshot).index is None


def test_weights_without_an_index(request_: dict[str, Any], tmp_path: Path) -> None:
    """One file, or a format that has no index; an empty file that is no weight file is in order."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "__init__.py").touch()
    assert model(request_, tmp_path).named == 0
    (tmp_path / "model.safetensors").write_bytes(b"xyz")
    assert model(request_, tmp_path).complete
    (tmp_path / "more.bin").touch()
    assert model(request_, tmp_path).empty == ("more.bin",)


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's folder")
def test_a_folder_that_may_not_be_looked_into_costs_only_itself(request_: dict[str, Any]) -> None:
    """The agent as nobody, who may not list root's folder."""
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]

    class Nobody(LocalTransport):
        def run(self, argv: Any, *, stdin: str = "", timeout_s: float) -> Any:
            return super().run([*as_nobody, *argv[1:]], stdin=stdin, timeout_s=timeout_s)

    with tempfile.TemporaryDirectory(dir="/tmp") as closed:  # mode 700
        request = {**request_, "run_dir": closed, "models": {"model": closed}, "folders": {"cache_root": f"{closed}/x"}}
        facts = read("local", ask_agent(Nobody(), request))
    assert "model" not in facts.storage.models
    assert facts.system.login.uid == 65534
    assert not facts.storage.folders["cache_root"].writable


def test_downloads_that_were_interrupted(request_: dict[str, Any], snapshot: Path, tmp_path: Path) -> None:
    half = tmp_path / "hub/models--m/blobs/ab.incomplete"
    half.write_bytes(b"1234567")
    lock = tmp_path / "hub/.locks/models--m/ab.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(half, (time.time() - 3600, time.time() - 3600))
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        rests = {rest.path: rest for rest in read("local", ask({**request_, "hub": str(tmp_path)})).storage.rests}
    assert (rests[str(half)].bytes, rests[str(half)].held, rests[str(half)].is_lock) == (7, False, False)
    assert rests[str(half)].age_s == pytest.approx(3600, abs=60)
    assert (rests[str(lock)].held, rests[str(lock)].is_lock) == (True, True)


def test_what_is_asked_of_each_rank() -> None:
    head, worker = (facts_step(rank).request for rank in ranks(effective("spark2")))
    assert (head["peers"], worker["peers"]) == (["10.0.0.2"], ["10.0.0.1"])
    assert (head["ports"], worker["ports"]) == ([8888, 29521], [])
    assert head["image"] == worker["image"] == "spark-lab/glm-exl3:0.32"
    assert list(head["models"]) == ["model", "drafter"]
    assert list(facts_step(ranks(effective("spark2", SPEC_METHOD="mtp"))[0]).request["models"]) == ["model"]
    local = facts_step(ranks(effective("local"))[0]).request
    assert (local["peers"], local["image"], local["models"], local["hub"]) == ([], None, {}, None)


def test_gathering_bounds_the_clock_and_keeps_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = load({"kit": "local"}, environ={}, path=NOWHERE)
    with session.opened(settings) as cluster:
        clock = gather(settings, cluster.nodes).nodes["local"].system.clock
        assert clock is not None
        assert clock.low_s <= 0 <= clock.high_s
        assert clock.high_s - clock.low_s < 5
        monkeypatch.setattr(type(cluster.nodes.transports["local"]), "run", _lost)
        failed = gather(settings, cluster.nodes)
    assert failed.nodes == {}
    assert "cable" in failed.failures["local"]


def test_remarks_on_the_log_in_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = load({"kit": "local"}, environ={}, path=NOWHERE)
    monkeypatch.setattr(LocalTransport, "notes", ["the ssh agent at /a was left out: timed out"], raising=False)
    with session.opened(settings) as cluster:
        assert gather(settings, cluster.nodes).notes == {"local": ("the ssh agent at /a was left out: timed out",)}


def _lost(self: LocalTransport, argv: Any, *, stdin: str = "", timeout_s: float) -> Any:
    from cluster.transport import Outcome

    return Outcome(self.node, tuple(argv), None, "", "", 0.0, "lost: the cable")
