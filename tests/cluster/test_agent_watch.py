"""The node's side of a look, on real processes and sockets: log, CPU time, states, connections, notes."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import agent_watch
from cluster.boot import look as looks
from cluster.plan import probe_step
from cluster.ranks import ranks
from cluster.settings import load
from tests.cluster.support import Node, eventually

AGENT: Any = agent_watch
SLEEPS = "import time; print('here', flush=True); time.sleep(600)"
SPINS = "print('here', flush=True)\nwhile True: pass"
FORKS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}], start_new_session=True)"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop(grace_s=1)
    node.clean_up()


def look(node: Node, cursor: str | None = "", deep: bool = False, peers: tuple[str, ...] = (), folders: tuple[str, ...] = ()) -> Any:
    common = {"probe": "probe", "port": None, "deep": deep, "peers": peers, "folders": folders, "runtime": "process"}
    return node.ask("watch_look", cursor=cursor, **common)["watch"]


def texts(seen: Any) -> list[str]:
    return [text for _, text in seen["lines"]]


def test_log_lines_since_the_last_look(node: Node) -> None:
    node.python(SLEEPS)
    eventually(lambda: node.says("here"))
    first = look(node)
    assert (texts(first), first["cursor"]) == (["here"], "5")
    with node.log.open("a") as log:
        log.write("\x1b[32mgreen\x1b[0m\n\n  0%|\r 50%|\r100%| done\nnot yet who")
    second = look(node, first["cursor"])
    assert texts(second) == ["green", "100%| done"]
    with node.log.open("a") as log:
        log.write("le\n")
    third = look(node, second["cursor"])
    assert texts(third) == ["not yet whole"]
    assert texts(look(node, third["cursor"])) == []
    assert texts(look(node, None)) == []


def test_last_words_of_a_rank_that_ended(node: Node) -> None:
    node.python("import sys; sys.stdout.write('no line end')")
    node.ended()
    assert texts(look(node)) == ["no line end"]


def test_nothing_was_started(node: Node) -> None:
    seen = look(node)
    assert (seen["lines"], seen["processes"], seen["cpu_s"]) == ([], [], 0)


def test_cpu_time_and_states(node: Node) -> None:
    node.python(SPINS)
    eventually(lambda: node.says("here"))
    before = look(node)["cpu_s"]
    eventually(lambda: look(node)["cpu_s"] > before + 0.3, within_s=30)
    (spinner,) = [pid for pid, name, _ in look(node)["processes"] if name.startswith("python")]
    os.kill(spinner, signal.SIGSTOP)
    eventually(lambda: [spinner, "T"] in [[pid, state] for pid, _, state in look(node)["processes"]])
    still = look(node)["cpu_s"]
    assert look(node)["cpu_s"] == still


def test_descendants_in_sessions_of_their_own_belong_to_the_rank(node: Node) -> None:
    """As a container's processes, which only their descent ties to the pid that docker names."""
    node.python(FORKS)
    eventually(lambda: node.says("here"))
    assert len(look(node)["processes"]) == 3  # the shell, the parent, the child


def test_connections_with_a_peer(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            found = AGENT.connections("127.0.0.1")
            assert found["ESTABLISHED"] >= 2
            client.close()
            eventually(lambda: AGENT.connections("127.0.0.1").get("CLOSE_WAIT", 0) >= 1)
    assert AGENT.connections("192.0.2.77") == {}
    assert AGENT.connections("not an address") == {}


def test_ssh_is_no_peer_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "  sl  local_address rem_address   st\n"
    rows = "   0: 0100000A:0016 0200000A:C350 01\n   1: 0100000A:7351 0200000A:C351 01\n   2: 0100000A:7351 0300000A:C352 01\n"
    table = tmp_path / "tcp"
    table.write_text(head + rows)
    real = open
    monkeypatch.setattr("builtins.open", lambda path, *words, **more: real(table if path == "/proc/net/tcp" else path, *words, **more))
    assert AGENT.connections("10.0.0.2") == {"ESTABLISHED": 1}


def test_deep_look(node: Node, tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full/below"
    empty.mkdir()
    full.mkdir(parents=True)
    (full / "kernel").touch()
    node.python(SLEEPS)
    seen = look(node, deep=True, folders=(str(empty), str(tmp_path / "missing")))
    assert seen["cold_cache"] is True
    assert 0 < seen["memory_available_bytes"] < seen["memory_total_bytes"]
    assert seen["oom_kills"] >= 0
    assert look(node, deep=True, folders=(str(empty), str(tmp_path / "full")))["cold_cache"] is False
    assert "gpu" not in look(node)


def test_gpu_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program called nvidia-smi prints what a GB10's does: it does not tell every figure."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '96, 20.31'\necho '[N/A], 11.00'\n")
    smi.chmod(0o755)
    assert AGENT.gpu() == [[96.0, 20.31], [None, 11.0]]
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2; exit 9\n")
    assert AGENT.gpu() is None


def test_docker_lines_in_one_order() -> None:
    out = "2026-11-29T21:00:00.100000000Z a\n2026-11-29T21:00:00.300000000Z \n 10%|\n 20%|\n"
    err = "2026-11-29T21:00:00.200000000Z b\n"
    rows = sorted([*AGENT.stamped(out), *AGENT.stamped(err)])
    assert [AGENT.clean([text]) for _, text in rows] == [["a"], ["b"], [" 20%|"]]
    assert AGENT.unix_s("2026-11-29T21:08:01.609012321Z") == pytest.approx(1795986481.609012321)
    assert AGENT.unix_s("2026-11-29T21:08:01Z") == 1795986481


def test_notes_are_added_to_the_record_of_this_start_only(node: Node) -> None:
    node.python(SLEEPS, boot="b1")
    for boot, phases in (("b1", {"load": 1.5}), ("other", {"load": 9.9})):
        node.ask("watch_note", boot=boot, notes={"boot_phases_s": phases}, runtime="process")
    assert node.probe()["record"]["boot_phases_s"] == {"load": 1.5}


def test_request_of_a_look() -> None:
    """It asks what the probe asks; a cluster's rank names its peers, a single machine has none."""
    head, worker = ranks(load({"kit": "twin"}, {}))
    asked = looks.look_step(worker, "cursor", deep=True).request
    assert (asked["action"], asked["probe"], asked["peers"]) == ("watch_look", "rank_probe", ["10.77.0.1"])
    assert (asked["cursor"], asked["deep"], asked["port"]) == ("cursor", True, None)
    assert looks.look_step(head).request["port"] == probe_step(head).request["port"] == 18888
    (alone,) = ranks(load({"kit": "local"}, {}))
    assert (looks.look_step(alone).request["probe"], looks.look_step(alone).request["peers"]) == ("probe", [])
