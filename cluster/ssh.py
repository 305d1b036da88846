"""The OpenSSH client's side of one node, by fabric: configuration, jump hosts, host keys and log-in.

Import it only when a node is to be reached: fabric and paramiko take 0.2 s. Followed of `ssh_config`: Host, Match, Include, HostName,
User, Port, IdentityFile, IdentitiesOnly, IdentityAgent, ProxyJump, ProxyCommand, UserKnownHostsFile, GlobalKnownHostsFile and
HostKeyAlias. Log-in is by key only: nobody is there to type a password. StrictHostKeyChecking is always yes.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import hmac
import logging
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko  # type: ignore[import-untyped]

from cluster.errors import LaunchError
from cluster.transport import SshTarget

_BEAT_S = 5.0  # the node's sshd is asked for an answer so often: TCP alone takes a quarter of an hour to give up a dead peer
_DEAD_AFTER_S = 20.0  # without an answer for so long the connection is closed
_AGENT_S = 2.0  # a left-over agent socket takes the question and never answers

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # without a handler its tracebacks go to stderr


class Unreachable(LaunchError):
    """The node was not reached: `what` happened, and `hint`, what to try."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.what, self.hint = what, hint


# Configuration


def _paths(options: Mapping[str, Any], key: str, default: str) -> list[Path]:
    words = shlex.split(options.get(key, default))
    return [Path(word.replace("%d", "~")).expanduser() for word in words if word.lower() != "none"]


def _config_lines(path: Path, base: Path, depth: int = 0) -> Iterator[str]:
    """The lines of an ssh config with `Include`, which paramiko ignores. A Host block inside one is not bound to the block around it."""
    block = "Host *"
    for line in path.read_text(errors="replace").splitlines():
        word, *rest = line.split(None, 1) or [""]
        if word.lower() in ("host", "match"):
            block = line
        if word.lower() != "include" or depth > 8:
            yield line
            continue
        for name in shlex.split("".join(rest)):
            for found in filter(os.path.isfile, sorted(glob.glob(str(base / os.path.expanduser(name))))):
                yield from _config_lines(Path(found), base, depth + 1)
        yield block


def _load_config(target: SshTarget) -> Any:
    """fabric's configuration, from `target.ssh_config` or else from the user's and the system's file. Raises Unreachable."""
    user, system = Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")
    files = [Path(target.ssh_config).expanduser()] if target.ssh_config else [path for path in (user, system) if path.is_file()]
    parsed = paramiko.SSHConfig()
    for path in files:
        try:
            parsed.parse(_config_lines(path, system.parent if path == system else user.parent))
        except (OSError, ValueError, paramiko.SSHException) as error:
            raise Unreachable(f"the ssh config {path} cannot be used: {error}", f"ssh -F {path} -G {target.host}") from error
    return fabric.Config(ssh_config=parsed, lazy=True)  # lazy: without ~/.fabric.yaml


# Host keys

Learn = Callable[["Hop", Any], None]


@dataclass(frozen=True)
class KnownKey:
    """One known_hosts line about the wanted host."""

    where: str
    path: Path
    kind: str
    blob: bytes
    revoked: bool


def known_keys(files: Sequence[Path], name: str) -> list[KnownKey]:
    """The lines about `name` (`host` or `[host]:port`): plain, hashed, by pattern, and @revoked. @cert-authority lines are passed over."""
    return [key for path in files if path.is_file() for key in _known_in(path, name)]


def _known_in(path: Path, name: str) -> Iterator[KnownKey]:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@revoked") or not _names_match(words[0], name):
            continue
        with suppress(ValueError):
            yield KnownKey(f"{path} line {number}", path, words[1], base64.b64decode(words[2]), bool(marker))


def _names_match(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        with suppress(ValueError):
            salt, digest = (base64.b64decode(part) for part in names[3:].split("|"))
            return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
        return False
    matches = [pattern.startswith("!") for pattern in names.lower().split(",") if _glob_match(pattern.lstrip("!"), name.lower())]
    return bool(matches) and not any(matches)


def _glob_match(pattern: str, name: str) -> bool:
    """`*` and `?` only: the brackets of `[host]:port` are no character class, as they would be to fnmatch."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def fingerprint(kind: str, blob: bytes) -> str:
    """Type and hash of a public key, as `ssh-keygen -l` writes them."""
    return f"{kind} SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


class _HostKeyCheck(paramiko.RejectPolicy):  # type: ignore[misc]
    """The whole check of a host key: paramiko calls this for each of them, because its own store of known keys stays empty.

    (That store takes one key a type, drops @revoked and patterns, and falls over a malformed line.)
    """

    def __init__(self, hop: Hop, unknown: Learn) -> None:
        self.hop, self.unknown = hop, unknown

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        kind, blob = key.get_name(), key.asbytes()
        known = self.hop.known_keys()
        if any(line.revoked and line.blob == blob for line in known):
            raise Unreachable(f"the host key of {self.hop.key_name} is marked @revoked in known_hosts", "ask who runs that node")
        good = [line for line in known if not line.revoked]
        if not good:
            self.unknown(self.hop, key)
        elif all(line.blob != blob for line in good):
            raise _changed(self.hop.key_name, good[0], fingerprint(kind, blob))


def _changed(name: str, known: KnownKey, sent: str) -> Unreachable:
    return Unreachable(
        f"the host key of {name} has CHANGED: {known.where} has {fingerprint(known.kind, known.blob)}, the node sent {sent}",
        f"if that node was reinstalled: ssh-keygen -f {known.path} -R '{name}', then invoke trust; otherwise another machine answers",
    )


def _refuse(hop: Hop, key: Any) -> None:
    sent = fingerprint(key.get_name(), key.asbytes())
    raise Unreachable(
        f"the host key of {hop.key_name} is unknown: {sent} is not in {hop.user_files[0] if hop.user_files else 'known_hosts'}",
        "invoke trust (accepts it on first use; compare the fingerprint with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the node)",
    )


# Log-in


class _LogIn(paramiko.AuthStrategy):  # type: ignore[misc]
    """Tries without a key, then the identity files (by the agent, where it holds them), then the agent's other keys."""

    def __init__(self, options: Mapping[str, Any], user: str) -> None:
        super().__init__(ssh_config=options)
        self.user = user
        self.tried: list[str] = []
        self.notes: list[str] = []
        self._agent = paramiko.agent.AgentSSH()

    def authenticate(self, transport: Any) -> Any:
        try:
            return super().authenticate(transport)
        finally:
            self._agent._close()

    def get_sources(self) -> Iterator[Any]:
        yield paramiko.NoneAuth(self.user)
        explicit = [Path(name).expanduser() for name in self.ssh_config.get("identityfile", []) if name.lower() != "none"]
        defaults = [Path(f"~/.ssh/id_{kind}").expanduser() for kind in ("ed25519", "ecdsa", "rsa")]
        held = {key.asbytes(): key for key in self._agent_keys()}
        for path in explicit or [path for path in defaults if path.is_file()]:
            key = held.pop(_public_blob(path), None) or self._load(path)
            if key is not None:
                yield self._source(f"{path} ({fingerprint(key.get_name(), key.asbytes())})", key)
        if self.ssh_config.get("identitiesonly", "no").lower() != "yes":
            for blob, key in held.items():
                yield self._source(f"agent key {fingerprint(key.get_name(), blob)}", key)

    def _source(self, name: str, key: Any) -> Any:
        self.tried.append(name)
        return paramiko.auth_strategy.InMemoryPrivateKey(self.user, key)

    def _load(self, path: Path) -> Any:
        try:
            return paramiko.PKey.from_path(path)
        except TypeError:  # how the crypto library says that a passphrase is missing
            self.notes.append(f"{path} needs a passphrase: ssh-add {path}")
        except Exception as error:  # a dozen kinds, by format and library version
            self.notes.append(f"{path} cannot be read: {error}")

    def _agent_keys(self) -> Sequence[Any]:
        name = self.ssh_config.get("identityagent", "SSH_AUTH_SOCK")
        path = os.environ.get(name.lstrip("$"), "") if name.lstrip("$") == "SSH_AUTH_SOCK" else os.path.expanduser(name)
        if not path or path.lower() == "none":
            return []
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_AGENT_S)
            connection.connect(path)
            self._agent._connect(connection)
            connection.settimeout(None)  # signing may wait for a person; the connect limit is on it
        except Exception as error:
            self.notes.append(f"the ssh agent at {path} was left out: {str(error) or type(error).__name__}")
            return []
        keys: Sequence[Any] = self._agent.get_keys()
        return keys


def _public_blob(path: Path) -> bytes:
    """The public half of an identity file, from `PATH.pub` or PATH itself; empty when neither holds it."""
    for file in (Path(f"{path}.pub"), path):
        with suppress(OSError, ValueError, IndexError):
            return base64.b64decode(file.read_text().split()[1], validate=True)
    return b""


# Jump hosts


@dataclass
class Hop:
    """One machine on the way to the node; the last one is the node."""

    connection: Any
    options: Mapping[str, Any]
    log_in: Any

    @property
    def label(self) -> str:
        return f"{self.connection.user}@{self.connection.host} port {self.connection.port}"

    @property
    def key_name(self) -> str:
        """The name of this machine in known_hosts."""
        host, port = self.connection.host.lower(), self.connection.port
        return str(self.options.get("hostkeyalias") or (host if port == 22 else f"[{host}]:{port}"))

    @property
    def user_files(self) -> list[Path]:
        return _paths(self.options, "userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")

    def known_keys(self) -> list[KnownKey]:
        system = _paths(self.options, "globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
        return known_keys([*self.user_files, *system], self.key_name)

    def open(self, within_s: float, unknown: Learn, log_in: Any) -> None:
        limits = dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), within_s)
        self.connection.connect_timeout = within_s
        self.connection.connect_kwargs = {"transport_factory": self._transport, "auth_strategy": log_in, **limits}
        self.connection.client.set_missing_host_key_policy(_HostKeyCheck(self, unknown))
        self.connection.open()

    def _transport(self, sock: Any, **options: Any) -> Any:
        """A paramiko transport that asks first for the kinds of host key which are known."""
        if isinstance(sock, socket.socket):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each command waits 40 ms for a delayed ACK
        transport = paramiko.Transport(sock, **options)
        known = {key.kind for key in self.known_keys()}
        known |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in known else set()
        offered = transport.get_security_options()
        offered.key_types = sorted(offered.key_types, key=lambda kind: kind not in known)
        return transport


def _hops(config: Any, host: str, user: str | None, port: int | None, seen: tuple[str, ...] = ()) -> list[Hop]:
    """The way to `host`. The first jump host may have jump hosts of its own; a host is never its own (`Host *` with a ProxyJump)."""
    options = config.base_ssh_config.lookup(host)
    jump, chain, seen = options.get("proxyjump", "none"), list[Hop](), (*seen, host)
    for spec in [] if jump.lower() == "none" else jump.split(","):
        parts = re.fullmatch(r"(?:ssh://)?(?:(.+)@)?(?:\[(.+)\]|([^@:]+))(?::(\d+))?/?", spec.strip())
        if parts is None:
            raise Unreachable(f"ProxyJump {spec!r} cannot be understood", "write it as user@host:port")
        name, login, number = parts[2] or parts[3], parts[1], int(parts[4]) if parts[4] else None
        if name not in seen:
            chain = [*chain, _hop(config, name, login, number, chain)] if chain else _hops(config, name, login, number, seen)
    return [*chain, _hop(config, host, user, port, chain)]


def _hop(config: Any, host: str, user: str | None, port: int | None, before: Sequence[Hop]) -> Hop:
    options = config.base_ssh_config.lookup(host)
    command = None if "proxyjump" in options else options.get("proxycommand")
    gateway = before[-1].connection if before else command or False  # False keeps fabric from looking for one itself
    connection = fabric.Connection(host, user=user, port=port, config=config, gateway=gateway, forward_agent=False)
    return Hop(connection, options, _LogIn(options, connection.user))


# Connecting


@dataclass
class Link:
    """An open way to a node. `notes` are remarks on the log-in, such as an agent that did not answer."""

    target: SshTarget
    hops: Sequence[Hop] = ()
    at: str = ""
    given_up: bool = False

    @property
    def transport(self) -> Any:
        return self.hops[-1].connection.client.get_transport()

    @property
    def notes(self) -> list[str]:
        return [note for hop in self.hops for note in hop.log_in.notes]

    def open(self, within_s: float, unknown: Learn, log_in: bool) -> None:
        self.at = self.target.host
        self.hops = _hops(_load_config(self.target), self.target.host, self.target.user, self.target.port)
        for hop in self.hops:
            self.at = hop.label
            hop.open(within_s, unknown, hop.log_in if log_in or hop is not self.hops[-1] else _NoLogIn())
        if log_in and not self.transport.is_authenticated():
            raise Unreachable(f"{self.at} wants more than the key it accepted", "allow this user to log in by key alone")

    def close(self) -> None:
        for hop in reversed(self.hops):
            with suppress(Exception):
                hop.connection.client.close()


class _NoLogIn:
    """Stops after the check of the host key."""

    def authenticate(self, transport: Any) -> None: ...


def connect(target: SshTarget, within_s: float, *, unknown: Learn = _refuse, log_in: bool = True) -> Link:
    """An open, checked and logged-in way to the node, within `within_s`. Raises Unreachable."""
    link, failed = Link(target), list[Exception]()

    def work() -> None:
        try:
            link.open(within_s, unknown, log_in)
        except Exception as error:
            failed.append(error)
        if link.given_up:
            link.close()

    # In a thread of its own, because name look-up, agents and gateways know no time limit.
    thread = threading.Thread(target=work, daemon=True, name=f"ssh {target.node}")
    thread.start()
    try:
        thread.join(within_s)
    finally:
        link.given_up = thread.is_alive()
    if link.given_up:
        threading.Thread(target=link.close, daemon=True).start()
        raise _explain(TimeoutError(), link, within_s)
    if failed:
        link.close()
        raise _explain(failed[0], link, within_s) from failed[0]
    if log_in:
        threading.Thread(target=_watch, args=(link.transport,), daemon=True, name=f"heartbeat {target.node}").start()
    return link


def _explain(error: Exception, link: Link, within_s: float) -> Unreachable:
    """What went wrong on the way, in words."""
    if isinstance(error, Unreachable):
        return error
    if isinstance(error, paramiko.AuthenticationException):
        return _not_let_in(error, link)
    if isinstance(error, TimeoutError):
        return Unreachable(f"{link.at} did not answer within {within_s:.3g} s", "is the node on, and its address right? ping it")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{link.at}: the name is unknown ({error.strerror})", "check the node's name, HostName in ~/.ssh/config")
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        reasons = ", ".join(f"{address[0]}: {reason.strerror or reason}" for address, reason in error.errors.items())
        return Unreachable(f"{link.at} takes no connection ({reasons})", "is sshd running there, on this port? systemctl status ssh")
    return Unreachable(f"{link.at}: {str(error) or type(error).__name__}", f"ssh -v {link.target.host}")


def _not_let_in(error: Exception, link: Link) -> Unreachable:
    log_in = next(hop.log_in for hop in link.hops if hop.label == link.at)
    reasons = {str(result.result) for result in getattr(error, "result", [])} or {str(error)}
    tried = "; ".join(log_in.tried) or "no key at all"
    what = f"{link.at} does not let this user in: tried {tried}; the node said: {', '.join(sorted(reasons))}"
    host = log_in.ssh_config.get("hostname", link.target.host)
    hint = f"ssh-copy-id {log_in.user}@{host}, or set User and IdentityFile (IdentitiesOnly yes if an agent has many keys) in ~/.ssh/config"
    return Unreachable("; ".join([what, *log_in.notes]), hint)


def _watch(transport: Any) -> None:
    """Ask the node's sshd for an answer again and again, and close the connection when there is none."""
    while transport.is_active():
        alarm = threading.Timer(_DEAD_AFTER_S, transport.close)
        alarm.daemon = True
        alarm.start()
        with suppress(Exception):
            transport.global_request("keepalive@openssh.com", wait=True)
        alarm.cancel()
        transport.join(_BEAT_S)


def session(link: Link, within_s: float) -> Any:
    """A channel for one command. Raises Unreachable."""
    try:
        return link.transport.open_session(timeout=within_s)
    except Exception as error:
        raise Unreachable(f"{link.at} opened no session: {str(error) or type(error).__name__}", f"ssh -v {link.target.host}") from error


def exit_code(channel: Any, *, refused: bool) -> int:
    """How the command on a channel ended: its exit code, or -1 when a signal ended it. Raises Unreachable when nobody knows."""
    code: int = channel.exit_status
    channel.close()
    if code >= 0:
        return code
    transport = channel.get_transport()
    transport.join(0.2)  # a lost connection first closes its channels, and only then says that it is lost
    if not transport.is_active():
        raise Unreachable("the connection was lost while the command ran; it may still be running", "look at the node before you repeat it")
    if refused:
        raise Unreachable("the node refuses to run commands for this user", "look for ForceCommand and command= in authorized_keys there")
    return -1


def end(channel: Any) -> None:
    """Give a channel up: the command gets SIGTERM (OpenSSH 7.9 and newer pass it on). A connection that blocks is closed."""
    transport = channel.get_transport()
    request = paramiko.Message()
    request.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("signal")
    request.add_boolean(False)
    request.add_string("TERM")

    def work() -> None:
        with suppress(Exception):
            transport._send_user_message(request)
            channel.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2)
    if thread.is_alive():
        transport.close()


def trust(target: SshTarget) -> tuple[str, ...]:
    """Accept the unknown host keys on the way to a node: append them to known_hosts. One line for each machine: name and fingerprint.

    A key that differs from a known one is never replaced. Raises Unreachable.
    """
    added: list[str] = []

    def learn(hop: Hop, key: Any) -> None:
        if not hop.user_files:
            raise Unreachable(f"UserKnownHostsFile of {hop.key_name} is none", "name a file there, or add the key to the system's file")
        path = hop.user_files[0]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = path.read_bytes() if path.is_file() else b""
        gap = "\n" if before and not before.endswith(b"\n") else ""
        with open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"{gap}{hop.key_name} {key.get_name()} {key.get_base64()}\n")
        added.append(f"{hop.key_name} {fingerprint(key.get_name(), key.asbytes())} added to {path}")

    link = connect(target, target.connect_timeout_s, unknown=learn, log_in=False)
    link.close()
    known = [f"{hop.key_name} was known" for hop in link.hops if not any(line.startswith(f"{hop.key_name} ") for line in added)]
    return (*added, *known)
