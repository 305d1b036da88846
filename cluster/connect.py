"""Which transport reaches a node: this machine's own commands, or ssh."""

from __future__ import annotations

import socket

from cluster.fields import NodeSettings
from cluster.ranks import ranks
from cluster.settings import Effective
from cluster.transport import LocalTransport, SshTarget, Transport


def connect(role: str, node: NodeSettings, effective: Effective) -> Transport:
    """A transport to the node of `role`. No connection is opened before the first command.

    A node whose address is one of this machine's own is not reached by ssh (a head need not be able to log in to itself).
    """
    if effective.kit.topology == "single" or (node.ssh is None and node.ip is not None and is_own_address(node.ip)):
        return LocalTransport(role)
    from cluster.transport import FabricTransport

    return FabricTransport(ssh_target(role, node, effective))


def ssh_target(role: str, node: NodeSettings, effective: Effective) -> SshTarget:
    """Where and as whom to log in: the node's *_SSH, else its address; a *_USER wins over a user in *_SSH."""
    user, host, port = destination(node.ssh or node.ip or "")
    return SshTarget(role, host, node.user or user, port, effective.settings.ssh_config)


def trust_all(effective: Effective) -> list[str]:
    """Accept the host keys of all nodes reached by ssh that are not known yet; one line per key.

    Raises LaunchError for a key that differs from the known one: that is never replaced.
    """
    from cluster import transport

    reached = [rank for rank in ranks(effective) if not isinstance(connect(rank.role, rank.node, effective), LocalTransport)]
    return [line for rank in reached for line in transport.trust(ssh_target(rank.role, rank.node, effective))]


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
