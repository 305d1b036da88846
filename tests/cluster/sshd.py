"""Real ssh servers for tests: sshd on a loopback address and a high port, run by the current user, with keys and a HOME of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.transport import FabricTransport, Outcome, SshTarget
from tests.cluster.support import eventually, stat

_CONFIG = """
ListenAddress {address}:{port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {authorized}
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
SetEnv HOME={folder}/home
"""


def find_sshd() -> str:
    """The sshd program. Without it the test is skipped, but fails where CI is set, so that it cannot go unnoticed."""
    found = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        how = "no sshd here: apt-get install openssh-server (it need not run as a service)"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    return found


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path], check=True)
    return path


def public(key: Path) -> str:
    """The public half of a key file as `type base64`."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


@dataclass
class Sshd:
    """One server. `folder` holds its host key, its home and its log; `authorized` is its list of keys that may log in."""

    folder: Path
    address: str
    authorized: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        with socket.create_server((self.address, 0)) as free:
            self.port = self.port or free.getsockname()[1]
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        make_key(self.folder / "host_key")

    @property
    def name(self) -> str:
        return f"[{self.address}]:{self.port}"

    @property
    def known_line(self) -> str:
        return f"{self.name} {public(self.folder / 'host_key')}\n"

    def start(self) -> Sshd:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        settings = {"address": self.address, "port": self.port, "folder": self.folder, "authorized": self.authorized}
        (self.folder / "config").write_text(_CONFIG.format(**settings))
        command = [find_sshd(), "-D", "-f", str(self.folder / "config"), "-E", str(self.folder / "log")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        eventually(self._listens)
        return self

    def _listens(self) -> bool:
        assert self.process
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with suppress(OSError), socket.create_connection((self.address, self.port), 1):
            return True
        return False

    def sessions(self) -> list[int]:
        """The sshd processes that serve a connection (and their unprivileged children)."""
        found = [self.process.pid] if self.process else []
        for parent in found:
            found += [pid for pid in _children(parent) if b"sshd" in _command(pid)]
        return found[1:]

    def signal_sessions(self, sig: signal.Signals) -> None:
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def stop(self) -> None:
        """End the server and every connection to it."""
        if self.process is None:
            return
        sessions = self.sessions()
        self.process.kill()
        self.process.wait()
        self.process = None
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if stat(pid)[1:2] == [str(parent)]]


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@dataclass
class Client:
    """The person at the keyboard: HOME with `.ssh`, one key that both servers know, and the two servers."""

    home: Path
    key: Path
    servers: tuple[Sshd, Sshd]

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def config(self, text: str) -> None:
        (self.home / ".ssh" / "config").write_text(text)

    def target(self, server: Sshd | None = None, **changes: object) -> SshTarget:
        server = server or self.servers[0]
        values = {"node": "spark-2", "host": server.address, "port": server.port, "connect_timeout_s": 5.0, **changes}
        return SshTarget(**values)  # type: ignore[arg-type]


def two_servers(folder: Path) -> Iterator[tuple[Path, tuple[Sshd, Sshd]]]:
    """A log-in key and two servers that accept it; ended afterwards."""
    find_sshd()
    key = make_key(folder / "keys" / "id_test")
    authorized = folder / "keys" / "authorized"
    authorized.write_text(public(key) + "\n")
    servers = (Sshd(folder / "h2", "127.0.0.2", authorized), Sshd(folder / "h3", "127.0.0.3", authorized))
    try:
        yield key, (servers[0].start(), servers[1].start())
    finally:
        for server in servers:
            server.stop()


def new_client(home: Path, key: Path, servers: tuple[Sshd, Sshd]) -> Client:
    """A HOME where both servers are known and the key is the default one."""
    client = Client(home, home / ".ssh" / "id_ed25519", servers)
    client.known_hosts.parent.mkdir(mode=0o700, parents=True)
    client.known_hosts.write_text("".join(server.known_line for server in servers))
    for suffix in ("", ".pub"):
        shutil.copy(f"{key}{suffix}", f"{client.key}{suffix}")
    return client


def run(target: SshTarget, *argv: str, timeout_s: float = 30) -> Outcome:
    """One command on a connection of its own."""
    with FabricTransport(target) as transport:
        return transport.run(argv or ("echo", "here"), timeout_s=timeout_s)


def reached(outcome: Outcome) -> bool:
    """Whether the command succeeded; fails when the node was not reached."""
    assert outcome.failure is None, f"{outcome.failure}\ntry: {outcome.hint}"
    return outcome.code == 0
