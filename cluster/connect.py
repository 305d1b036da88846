"""Which transport reaches a node: this machine's own commands, or ssh."""

from __future__ import annotations

import socket

from cluster.fields import NodeSettings
from cluster.settings import Effective
from cluster.transport import LocalTransport, Transport


def connect(role: str, node: NodeSettings, effective: Effective) -> Transport:
    """A transport to the node of `role`. No connection is opened before the first command.

    A node whose address is one of this machine's own is not reached by ssh (a head need not be able to log in to itself).
    """
    if effective.kit.topology == "single" or (node.ssh is None and node.ip is not None and is_own_address(node.ip)):
        return LocalTransport(role)
    from cluster.transport import FabricTransport, SshTarget

    user, host, port = destination(node.ssh or node.ip or "")
    return FabricTransport(SshTarget(role, host, node.user or user, port, effective.settings.ssh_config))


def is_own_address(address: str) -> bool:
    """Whether this machine has the address: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def destination(text: str) -> tuple[str | None, str, int | None]:
    """user, host and port of `[user@]host[:port]`."""
    user, _, rest = text.rpartition("@")
    host, colon, port = rest.rpartition(":")
    if colon and port.isdigit() and ":" not in host:
        return user or None, host, int(port)
    return user or None, rest, None
