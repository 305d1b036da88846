"""FabricTransport against real ssh servers: what arrives, what comes back, and what is said when the node is not reached."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import LaunchError
from cluster.transport import FabricTransport, Outcome, SshTarget, gather, trust
from tests.cluster.sshd import Client, Sshd, make_key, new_client, public, two_servers
from tests.cluster.support import Node, command_lines, eventually, lives

ECHO = "import sys; sys.stdout.write(sys.stdin.read())"
Servers = tuple[Path, tuple[Sshd, Sshd]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    yield from two_servers(tmp_path_factory.mktemp("sshd"))


@pytest.fixture
def client(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return new_client(tmp_path / "me", *servers)


@pytest.fixture
def node(client: Client) -> Iterator[FabricTransport]:
    with FabricTransport(client.target()) as transport:
        yield transport


def run(target: SshTarget, *argv: str, timeout_s: float = 30) -> Outcome:
    with FabricTransport(target) as transport:
        return transport.run(argv or ("echo", "here"), timeout_s=timeout_s)


def reached(outcome: Outcome) -> bool:
    assert outcome.failure is None, f"{outcome.failure}\ntry: {outcome.hint}"
    return outcome.code == 0


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
    pid = agent.start("sleep", "600", boot="b1")["record"]["pid"]
    assert agent.probe()["pids"]
    assert lives(pid)
    assert agent.stop() == {"was_running": True, "left": []}
    assert not lives(pid)


# Time limits and lost connections


def test_the_time_limit_ends_the_wait_and_the_command_and_keeps_the_connection(node: FabricTransport) -> None:
    assert reached(node.run(["true"], timeout_s=30))
    outcome = node.run(["sh", "-c", "echo $$; exec sleep 600"], timeout_s=0.5)
    assert (outcome.code, outcome.failure) == (None, None)
    assert 0.5 <= outcome.seconds < 2
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
    assert gather(calls) == {str(n): f"{n}\n" for n in range(6)}


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
    assert reached(node.run(["true"], timeout_s=30))
    client.servers[0].signal_sessions(signal.SIGSTOP)
    try:
        outcome = node.run(["cat"], stdin="x" * 20_000_000, timeout_s=2)
    finally:
        client.servers[0].signal_sessions(signal.SIGKILL)
    assert outcome.seconds < 5
    assert outcome.code is None


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


# Host keys


def test_an_unknown_host_key_is_refused_and_nothing_is_written(client: Client) -> None:
    client.known_hosts.write_text("")
    outcome = run(client.target())
    assert outcome.code is None
    assert f"{client.servers[0].name} is unknown" in (outcome.failure or "")
    assert str(client.known_hosts) in (outcome.failure or "")
    assert "invoke trust" in outcome.hint
    assert client.known_hosts.read_text() == ""


def test_trust_accepts_an_unknown_key_once(client: Client) -> None:
    client.known_hosts.write_text("# mine")
    expected = subprocess.run(["ssh-keygen", "-lf", client.servers[0].folder / "host_key.pub"], capture_output=True, text=True)
    (line,) = trust(client.target())
    assert expected.stdout.split()[1] in line
    assert client.known_hosts.read_text() == f"# mine\n{client.servers[0].known_line}"
    assert reached(run(client.target()))
    assert trust(client.target()) == (f"{client.servers[0].name} was known",)
    assert client.known_hosts.read_text() == f"# mine\n{client.servers[0].known_line}"


def test_trust_makes_the_folder_and_the_file(client: Client) -> None:
    client.config(f"Host *\n  UserKnownHostsFile ~/new/known\n  IdentityFile {client.key}\n")
    trust(client.target())
    assert (client.home / "new").stat().st_mode & 0o777 == 0o700
    assert (client.home / "new/known").stat().st_mode & 0o777 == 0o600
    assert reached(run(client.target()))


def test_a_changed_host_key_is_refused_also_by_trust(client: Client, tmp_path: Path) -> None:
    other = public(make_key(tmp_path / "other"))
    client.known_hosts.write_text(f"# first\n{client.servers[0].name} {other}\n")
    outcome = run(client.target())
    assert "has CHANGED" in (outcome.failure or "")
    assert f"{client.known_hosts} line 2" in (outcome.failure or "")
    assert f"ssh-keygen -f {client.known_hosts} -R '{client.servers[0].name}'" in outcome.hint
    with pytest.raises(LaunchError, match="has CHANGED"):
        trust(client.target())
    assert client.known_hosts.read_text() == f"# first\n{client.servers[0].name} {other}\n"


def test_a_key_of_another_kind_is_a_changed_key(client: Client, tmp_path: Path) -> None:
    client.known_hosts.write_text(f"{client.servers[0].name} {public(make_key(tmp_path / 'other', 'ecdsa'))}\n")
    assert "has CHANGED" in (run(client.target()).failure or "")


def test_one_of_several_known_keys_is_enough(client: Client, tmp_path: Path) -> None:
    other = public(make_key(tmp_path / "other"))
    client.known_hosts.write_text(f"{client.servers[0].name} {other}\n{client.servers[0].known_line}")
    assert reached(run(client.target()))


def test_hashed_names_are_understood(client: Client) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", client.known_hosts], check=True, capture_output=True)
    assert "127.0.0.2" not in client.known_hosts.read_text()
    assert reached(run(client.target()))


def test_several_files_patterns_and_junk_are_understood(client: Client) -> None:
    kind_and_key = public(client.servers[0].folder / "host_key")
    (client.home / "a").write_text("junk\n|1|zz|zz x y\n[127.0.0.2]:1 ssh-rsa !!!\n\xff\n")
    (client.home / "b").write_text(f"!other,[127.0.0.?]:* {kind_and_key}\n")
    client.config(f"UserKnownHostsFile ~/a %d/b\nIdentityFile {client.key}\n")
    client.known_hosts.write_text("")
    assert reached(run(client.target()))


def test_a_negated_pattern_excludes_the_host(client: Client) -> None:
    client.known_hosts.write_text(f"*,!{client.servers[0].name} {public(client.servers[0].folder / 'host_key')}\n")
    assert "is unknown" in (run(client.target()).failure or "")


def test_a_revoked_key_is_refused(client: Client) -> None:
    line = client.servers[0].known_line
    client.known_hosts.write_text(f"{line}@revoked * {line.split(' ', 1)[1]}")
    assert "@revoked" in (run(client.target()).failure or "")


def test_host_key_alias_names_the_entry(client: Client) -> None:
    client.known_hosts.write_text(f"spark {public(client.servers[0].folder / 'host_key')}\n")
    client.config("Host *\n  HostKeyAlias spark\n")
    assert reached(run(client.target()))


# Log-in


def test_a_wrong_key_names_what_was_tried(client: Client, tmp_path: Path) -> None:
    wrong = make_key(tmp_path / "wrong")
    client.config(f"Host *\n  IdentityFile {wrong}\n  IdentityFile {tmp_path}/missing\n")
    outcome = run(client.target(user="somebody"))
    failure = outcome.failure or ""
    assert "somebody@127.0.0.2 port" in failure
    assert f"{wrong} (ssh-ed25519 SHA256:" in failure
    assert f"{tmp_path}/missing cannot be read" in failure
    assert "publickey" in failure
    assert "ssh-copy-id somebody@127.0.0.2" in outcome.hint


def test_without_any_key_it_says_so(client: Client) -> None:
    client.key.unlink()
    assert "tried no key at all" in (run(client.target()).failure or "")


def test_a_key_with_a_passphrase_is_named(client: Client, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", passphrase="secret")
    client.config(f"IdentityFile {locked}\n")
    assert f"{locked} needs a passphrase: ssh-add {locked}" in (run(client.target()).failure or "")


@pytest.mark.parametrize("listed", [True, False])
def test_an_agent_that_never_answers_is_left_out(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: bool) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "agent"))
        if listed:
            mute.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        with FabricTransport(client.target()) as transport:
            outcome = transport.run(["echo", "here"], timeout_s=30)
            (note,) = transport.notes
    assert reached(outcome)
    assert outcome.seconds < 4
    assert f"the ssh agent at {tmp_path}/agent was left out" in note


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    eventually(path.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.kill()
    process.wait()


def test_the_agents_keys_are_used(client: Client, agent: Path) -> None:
    subprocess.run(["ssh-add", "-q", client.key], check=True)
    client.key.unlink()
    assert reached(run(client.target()))


def test_identities_only_leaves_the_agents_other_keys_out(client: Client, agent: Path, tmp_path: Path) -> None:
    for number in range(8):
        subprocess.run(["ssh-add", "-q", make_key(tmp_path / f"k{number}")], check=True)
    subprocess.run(["ssh-add", "-q", client.key], check=True)
    client.key.unlink()
    client.config("IdentitiesOnly yes\nIdentityFile ~/.ssh/id_ed25519\n")
    assert reached(run(client.target()))  # the public half picks the key out of the agent
    client.config(f"IdentitiesOnly yes\nIdentityFile {tmp_path}/none\n")
    failure = run(client.target()).failure or ""
    assert "tried no key at all" in failure
    assert "agent key" not in failure


# The ssh config


def test_an_alias_gives_address_port_user_and_key(client: Client) -> None:
    shutil.move(client.key, client.home / "shared key")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    client.config(
        f"Host spark-*\n  HostName 127.0.0.3\n  Port {client.servers[1].port}\n  User {user}\n"
        '  IdentityFile "~/shared key"\n  ForwardAgent ${X}\n'
    )
    assert reached(run(SshTarget("spark-2", "spark-b")))


def test_the_path_of_the_config_may_begin_with_a_tilde(client: Client) -> None:
    (client.home / "mine").write_text(f"Host b\n  HostName 127.0.0.3\n  Port {client.servers[1].port}\n")
    assert reached(run(SshTarget("spark-2", "b", ssh_config="~/mine")))


def test_a_missing_or_broken_config_is_named(client: Client) -> None:
    assert "~/nowhere".replace("~", str(client.home)) in (run(client.target(ssh_config="~/nowhere")).failure or "")
    client.config("Hostname\n")
    assert f"the ssh config {client.home}/.ssh/config cannot be used" in (run(client.target()).failure or "")


def test_included_files_count(client: Client) -> None:
    (client.home / ".ssh/more").mkdir()
    (client.home / ".ssh/more/spark.conf").write_text(f"Host b\n  HostName 127.0.0.3\n  Port {client.servers[1].port}\n")
    client.config(f"Include more/*.conf nothing/*\nIdentityFile {client.key}\nHost c\n  Port 1\n")
    assert reached(run(SshTarget("spark-2", "b")))


def jump_config(client: Client, more: str = "") -> str:
    first, second = client.servers
    return (
        f"Host door\n  HostName {first.address}\n  Port {first.port}\n"
        f"Host inner\n  HostName {second.address}\n  Port {second.port}\n  ProxyJump door\n{more}"
    )


def test_a_jump_host_leads_to_the_node(client: Client) -> None:
    client.config(jump_config(client))
    outcome = run(SshTarget("spark-2", "inner"), "sh", "-c", "echo $HOME $SSH_CONNECTION")
    assert reached(outcome)
    home, came_from, _, address, _ = outcome.stdout.split()
    assert home == str(client.servers[1].folder / "home")
    assert address == "127.0.0.3"
    assert came_from.startswith("127.")


@pytest.mark.parametrize("jump", ["none", "NONE", "127.0.0.2:{port}", "ssh://127.0.0.2:{port}", "door,127.0.0.2:{port}"])
def test_every_way_to_write_a_jump(client: Client, jump: str) -> None:
    first, second = client.servers
    via = jump.format(port=first.port)
    client.config(jump_config(client) + f"Host other\n  HostName {second.address}\n  Port {second.port}\n  ProxyJump {via}\n")
    assert reached(run(SshTarget("spark-2", "other")))


def test_a_jump_host_of_all_hosts_is_not_its_own(client: Client) -> None:
    client.config(jump_config(client, "Host *\n  ProxyJump door\n"))
    assert reached(run(SshTarget("spark-2", "inner")))
    assert reached(run(SshTarget("spark-2", "door")))


def test_a_jump_host_must_be_known_too_and_trust_learns_both(client: Client) -> None:
    client.config(jump_config(client))
    client.known_hosts.write_text(client.servers[1].known_line)
    assert f"{client.servers[0].name} is unknown" in (run(SshTarget("spark-2", "inner")).failure or "")
    client.known_hosts.write_text("")
    assert len(trust(SshTarget("spark-2", "inner"))) == 2
    assert reached(run(SshTarget("spark-2", "inner")))


def test_a_jump_to_nowhere_names_the_node_behind_it(client: Client) -> None:
    client.config(jump_config(client))
    outcome = run(SshTarget("spark-2", "inner", port=1))
    assert "127.0.0.3 port 1" in (outcome.failure or "")


def test_a_proxy_command_leads_to_the_node(client: Client) -> None:
    relay = client.home / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n    while d := os.read(0, 65536): s.sendall(d)\n    os._exit(0)\n"
        "threading.Thread(target=up, daemon=True).start()\nwhile d := s.recv(65536): os.write(1, d)\n"
    )
    client.config(f"Host *\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    first = client.servers[0]
    client.config(f"Host p\n  HostName {first.address}\n  Port {first.port}\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    assert reached(run(SshTarget("spark-2", "p")))


# Several nodes, and what it costs to have this at all


def test_gather_returns_every_outcome_in_order(client: Client) -> None:
    def broken() -> Outcome:
        raise LaunchError("no")

    def slow() -> Outcome:
        time.sleep(0.2)
        return run(client.target())

    results = gather({"a": slow, "b": broken, "c": lambda: run(client.target(client.servers[1]))})
    assert list(results) == ["a", "b", "c"]
    assert isinstance(results["a"], Outcome)
    assert isinstance(results["b"], LaunchError)
    assert isinstance(results["c"], Outcome)


def test_gather_runs_at_the_same_time() -> None:
    begin = time.monotonic()
    gather({str(n): lambda: time.sleep(0.3) for n in range(4)})
    assert time.monotonic() - begin < 1


def test_fabric_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, cluster.transport; sys.exit('fabric' in sys.modules or 'paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env={**os.environ}).returncode == 0
