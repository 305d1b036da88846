"""How FabricTransport finds and checks the way to a node, on real ssh servers: host keys, log-in, the ssh config and jump hosts."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import LaunchError
from cluster.transport import FabricTransport, SshTarget, trust
from tests.cluster.sshd import Client, make_key, public, reached, run
from tests.cluster.support import eventually

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
    first = client.servers[0]
    client.config(f"Host p\n  HostName {first.address}\n  Port {first.port}\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    assert reached(run(SshTarget("spark-2", "p")))
