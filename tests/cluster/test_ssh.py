"""FabricTransport against real ssh servers: what arrives, what comes back, and what is said when the node is not reached."""

import concurrent.futures
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko  # type: ignore[import-untyped]
import pytest

from cluster import ssh
from cluster.transport import FabricTransport, Outcome, SshTarget
from tests.cluster.sshd import Client, find_sshd, reached, run
from tests.cluster.support import Node, command_lines, eventually, lives

ECHO = "import sys; sys.stdout.write(sys.stdin.read())"


@pytest.fixture
def node(client: Client) -> Iterator[FabricTransport]:
    with FabricTransport(client.target()) as transport:
        yield transport


# What arrives and what comes back


def test_every_word_arrives_exactly_as_it_was(node: FabricTransport) -> None:
    words = ["", "a b", "it's", '"', "new\nline", "$HOME `id` $(id)", "ünïcode 🦥", "-n", "--", "*", "~", "a=b", "\\", "!", ";&|<>"]
    outcome = node.run([sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words], timeout_s=30)
    assert json.loads(outcome.stdout) == words


def test_five_megabytes_go_in_and_come_out_on_both_outputs(node: FabricTransport) -> None:
    copy = "import sys; text = sys.stdin.read(); sys.stderr.write(text.upper()); sys.stdout.write(text)"
    text = "0123456789abcdef" * (5 * 65536)
    outcome = node.run([sys.executable, "-c", copy], stdin=text, timeout_s=60)
    assert outcome.code == 0
    assert outcome.stdout == text
    assert outcome.stderr == text.upper()


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_the_exit_code_comes_back(node: FabricTransport, code: int) -> None:
    outcome = node.run(["sh", "-c", f"echo out; echo err >&2; exit {code}"], timeout_s=30)
    assert (outcome.code, outcome.stdout, outcome.stderr, outcome.failure) == (code, "out\n", "err\n", None)


def test_an_unknown_command_is_the_commands_failure_not_the_nodes(node: FabricTransport) -> None:
    outcome = node.run(["/nowhere/hf"], timeout_s=30)
    assert (outcome.code, outcome.failure) == (127, None)
    assert "/nowhere/hf" in outcome.stderr


def test_a_command_ended_by_a_signal_has_a_negative_code(node: FabricTransport) -> None:
    outcome = node.run([sys.executable, "-c", "import os; print('so far', flush=True); os.kill(os.getpid(), 9)"], timeout_s=30)
    assert (outcome.code, outcome.stdout, outcome.failure) == (-1, "so far\n", None)


def test_bytes_that_are_no_text_come_back_replaced(node: FabricTransport) -> None:
    assert node.run(["printf", r"a\377b"], timeout_s=30).stdout == "a\ufffdb"


def test_a_command_that_does_not_read_its_stdin_is_no_failure(node: FabricTransport) -> None:
    outcome = node.run(["echo", "done"], stdin="x" * 5_000_000, timeout_s=30)
    assert (outcome.code, outcome.stdout) == (0, "done\n")


def test_a_secret_on_stdin_is_in_no_process_list(node: FabricTransport) -> None:
    argv = [sys.executable, "-c", f"print('ready', flush=True); import time; time.sleep(1); {ECHO}"]
    result: list[Outcome] = []
    thread = threading.Thread(target=lambda: result.append(node.run(argv, stdin="hf_verysecret", timeout_s=30)))
    thread.start()
    eventually(lambda: "time.sleep(1); import sys; sys.stdout" in command_lines())
    assert "hf_verysecret" not in command_lines()
    thread.join()
    assert result[0].stdout == "ready\nhf_verysecret"


def test_the_node_agent_starts_probes_and_stops_a_process(node: FabricTransport, tmp_path: Path) -> None:
    agent = Node(tmp_path / "remote", node)
    agent.folder.mkdir()
    pid = agent.start("sleep", "600")["record"]["pid"]
    assert agent.probe()["pids"]
    assert lives(pid)
    assert agent.stop() == {"was_running": True, "left": []}
    assert not lives(pid)


# Time limits and lost connections


def test_the_time_limit_ends_the_wait_and_the_command_and_keeps_the_connection(node: FabricTransport) -> None:
    assert reached(node.run(["true"], timeout_s=30))
    outcome = node.run(["sh", "-c", "echo $$; exec sleep 20"], timeout_s=0.5)
    assert (outcome.code, outcome.failure) == (None, None)
    assert 0.5 <= outcome.seconds < 2
    if os.geteuid() != 0:  # sshd passes no signal on to the commands of root
        eventually(lambda: not lives(int(outcome.stdout)))
    link = node._link
    assert node.run(["echo", "again"], timeout_s=30).stdout == "again\n"
    assert node._link is link
    assert "timed out" in str(outcome.error("sleep"))


def test_the_connection_is_kept_between_commands(node: FabricTransport) -> None:
    ask = ["sh", "-c", "echo $SSH_CONNECTION"]
    assert node.run(ask, timeout_s=30).stdout == node.run(ask, timeout_s=30).stdout


def test_two_threads_may_use_one_transport(node: FabricTransport) -> None:
    calls = {str(n): lambda n=n: node.run(["echo", str(n)], timeout_s=30).stdout for n in range(6)}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        results = dict(zip(calls, pool.map(lambda call: call(), calls.values()), strict=True))
    assert results == {str(n): f"{n}\n" for n in range(6)}


def test_a_connection_lost_in_mid_command_is_told_at_once(client: Client, node: FabricTransport) -> None:
    timer = threading.Timer(0.7, client.servers[0].signal_sessions, [signal.SIGKILL])
    timer.start()
    outcome = node.run(["sh", "-c", "echo begun; sleep 30"], timeout_s=60)
    assert outcome.seconds < 5
    assert outcome.code is None
    assert outcome.stdout == "begun\n"
    assert "connection was lost" in (outcome.failure or "")
    assert "may still be running" in str(outcome.error("start"))


def test_after_a_lost_connection_the_next_command_opens_a_new_one(client: Client, node: FabricTransport) -> None:
    assert reached(node.run(["true"], timeout_s=30))
    client.servers[0].signal_sessions(signal.SIGKILL)
    assert reached(node.run(["true"], timeout_s=30))


def test_a_node_that_falls_silent_is_noticed(client: Client, node: FabricTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster import ssh

    monkeypatch.setattr(ssh, "_BEAT_S", 0.2)
    monkeypatch.setattr(ssh, "_DEAD_AFTER_S", 1.0)
    assert reached(node.run(["true"], timeout_s=30))
    timer = threading.Timer(0.5, client.servers[0].signal_sessions, [signal.SIGSTOP])
    timer.start()
    try:
        outcome = node.run(["sleep", "30"], timeout_s=60)
    finally:
        client.servers[0].signal_sessions(signal.SIGKILL)
    assert outcome.seconds < 5
    assert "connection was lost" in (outcome.failure or "")


def test_a_silent_node_does_not_outlast_the_time_limit(client: Client, node: FabricTransport) -> None:
    timer = threading.Timer(0.7, client.servers[0].signal_sessions, [signal.SIGSTOP])
    timer.start()
    try:
        outcome = node.run(["sh", "-c", "sleep 1; cat"], stdin="x" * 20_000_000, timeout_s=2)
    finally:
        client.servers[0].signal_sessions(signal.SIGKILL)
    assert 2 <= outcome.seconds < 5
    assert outcome.code is None


def test_a_kept_connection_that_fell_silent_is_replaced_within_the_time_limit(client: Client, node: FabricTransport) -> None:
    assert reached(node.run(["true"], timeout_s=30))
    client.servers[0].signal_sessions(signal.SIGSTOP)
    try:
        outcome = node.run(["echo", "here"], timeout_s=2)
    finally:
        client.servers[0].signal_sessions(signal.SIGKILL)
    assert reached(outcome)
    assert outcome.seconds < 2


def test_a_refused_port_says_so(client: Client) -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    outcome = run(client.target(port=port))
    assert outcome.code is None
    assert f"127.0.0.2 port {port} takes no connection (127.0.0.2: Connection refused)" in (outcome.failure or "")
    assert "is sshd running" in outcome.hint


def test_an_unknown_name_says_so(client: Client) -> None:
    assert "the name is unknown" in (run(client.target(host="no-such-host.invalid")).failure or "")


def test_a_node_that_does_not_answer_ends_within_the_connect_timeout(client: Client) -> None:
    with socket.create_server(("127.0.0.2", 0)) as mute:
        outcome = run(client.target(port=mute.getsockname()[1], connect_timeout_s=1))
    assert 0.9 < outcome.seconds < 2.5
    assert "did not answer within 1 s" in (outcome.failure or "")


def test_the_time_limit_covers_connecting(client: Client) -> None:
    with socket.create_server(("127.0.0.2", 0)) as mute:
        outcome = run(client.target(port=mute.getsockname()[1], connect_timeout_s=20), timeout_s=0.5)
    assert outcome.seconds < 2


# Several nodes, and what it costs to have this at all


def test_fabric_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, cluster.transport; sys.exit('fabric' in sys.modules or 'paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env={**os.environ}).returncode == 0


@pytest.mark.parametrize(("ci", "ends"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_sshd_these_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch, ci: str, ends: type[Exception]) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends, match="apt-get install openssh-server"):
        find_sshd()


@pytest.mark.parametrize(
    ("number", "words", "hint"),
    [
        (errno.EHOSTUNREACH, "did not answer (10.0.0.2: No route to host)", "is the node on, its cable in"),
        (errno.ECONNREFUSED, "takes no connection (10.0.0.2: Connection refused)", "is sshd running there"),
    ],
)
def test_a_missing_cable_is_told_from_a_missing_sshd(number: int, words: str, hint: str) -> None:
    """A cable that is out gives a timeout, or this error once the kernel has forgotten the neighbour."""
    tried = paramiko.ssh_exception.NoValidConnectionsError({("10.0.0.2", 22): OSError(number, os.strerror(number))})
    link: Any = SimpleNamespace(at="spark@10.0.0.2 port 22", target=SshTarget("worker", "10.0.0.2"))
    found = ssh._explain(tried, link, 8)
    assert (words in found.what, hint in found.hint) == (True, True), found
