"""The OpenSSH client's side of one node, by fabric: configuration, jump hosts, host keys and log-in.

Import it only when a node is to be reached: fabric and paramiko take 0.2 s. Followed of `ssh_config`: Host, Match, Include, HostName,
User, Port, IdentityFile, IdentitiesOnly, IdentityAgent, ProxyJump, ProxyCommand, UserKnownHostsFile, GlobalKnownHostsFile and
HostKeyAlias. Log-in is by key only: nobody is there to type a password. StrictHostKeyChecking is always yes.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fabric  # type: ignore[import-untyped]
import paramiko  # type: ignore[import-untyped]

from cluster import ssh_config
from cluster.errors import Unreachable
from cluster.known_hosts import fingerprint
from cluster.ssh_hop import Hop, Learn, refuse
from cluster.ssh_login import LogIn
from cluster.transport import SshTarget

_BEAT_S = 5.0  # the node's sshd is asked for an answer so often: TCP alone takes a quarter of an hour to give up a dead peer
_DEAD_AFTER_S = 20.0  # without an answer for so long the connection is closed

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # without a handler its tracebacks go to stderr


def _config(target: SshTarget) -> Any:
    """fabric's configuration around the OpenSSH one. Raises Unreachable."""
    return fabric.Config(ssh_config=ssh_config.read(target), lazy=True)  # lazy: without ~/.fabric.yaml


# Jump hosts


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
    return Hop(connection, options, LogIn(options, connection.user))


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
        self.hops = _hops(_config(self.target), self.target.host, self.target.user, self.target.port)
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


def connect(target: SshTarget, within_s: float, *, unknown: Learn = refuse, log_in: bool = True) -> Link:
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


_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT}


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
        if all(reason.errno in _NO_WAY for reason in error.errors.values()):  # what a missing cable gives, where it is no timeout
            return Unreachable(f"{link.at} did not answer ({reasons})", "is the node on, its cable in, and its address right? ping it")
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
