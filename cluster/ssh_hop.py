"""One machine on the way to a node: opening its connection, with the whole check of its host key."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko  # type: ignore[import-untyped]

from cluster import ssh_config
from cluster.errors import Unreachable
from cluster.known_hosts import KnownKey, fingerprint, known_keys

Learn = Callable[["Hop", Any], None]


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


def refuse(hop: Hop, key: Any) -> None:
    sent = fingerprint(key.get_name(), key.asbytes())
    raise Unreachable(
        f"the host key of {hop.key_name} is unknown: {sent} is not in {hop.user_files[0] if hop.user_files else 'known_hosts'}",
        "invoke trust (accepts it on first use; compare the fingerprint with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the node)",
    )


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
        return ssh_config.paths(self.options, "userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")

    def known_keys(self) -> list[KnownKey]:
        system = ssh_config.paths(self.options, "globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
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
