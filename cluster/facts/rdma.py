"""RoCE devices and their GID tables, from sysfs. Paths are the kernel's documented ones (Documentation/ABI, infiniband)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.facts.network import Network
from cluster.facts.raw import Raw, quantity

V2 = "RoCE v2"


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table. kind: "RoCE v2" or "IB/RoCE v1", None when it could not be read."""

    index: int
    address: ipaddress.IPv6Address
    kind: str | None

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address that the GID maps, as ::ffff:10.0.0.1 does."""
        return str(self.address.ipv4_mapped) if self.address.ipv4_mapped else None

    @property
    def link_local(self) -> bool:
        return self.address.is_link_local

    def __str__(self) -> str:
        return f"{self.kind or 'unknown type'} {'::ffff:' + self.ipv4 if self.ipv4 else self.address}"


@dataclass(frozen=True)
class Hca:
    """One port of an RDMA device. state: "4: ACTIVE". rate: Gb/s. netdev: its network device. gids: what is in its table, by index."""

    name: str
    port: int
    state: str | None
    physical: str | None
    link_layer: str | None
    rate_gbit: float | None
    firmware: str | None
    netdev: str | None
    gids: Mapping[int, Gid]

    @property
    def ethernet(self) -> bool:
        """Whether it is RoCE; on InfiniBand the GID table means something else."""
        return self.link_layer in (None, "Ethernet")

    @property
    def up(self) -> bool | None:
        """Whether the port is active; None when the state could not be read."""
        return None if self.state is None else "ACTIVE" in self.state.upper()


@dataclass(frozen=True)
class Rdma:
    hcas: tuple[Hca, ...]

    def get(self, name: str, port: int = 1) -> Hca | None:
        return next((hca for hca in self.hcas if (hca.name, hca.port) == (name, port)), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({hca.name for hca in self.hcas}))


def parse(raw: Raw) -> Rdma:
    """Every port of every device that has a state file."""
    found = [(match[1], int(match[2])) for match, _ in raw.matching(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/state")]
    return Rdma(tuple(_hca(raw, name, port) for name, port in sorted(found)))


def _hca(raw: Raw, name: str, port: int) -> Hca:
    base = f"/sys/class/infiniband/{name}"
    at = f"{base}/ports/{port}"
    gids = [_gid(raw, at, int(match[1]), text) for match, text in raw.matching(re.escape(at) + r"/gids/(\d+)")]
    state, physical, layer = (raw.text(f"{at}/{name}") for name in ("state", "phys_state", "link_layer"))
    table = {gid.index: gid for gid in gids if gid is not None}
    rate, firmware = quantity(raw.text(f"{at}/rate")), raw.text(f"{base}/fw_ver")
    return Hca(name, port, state, physical, layer, rate, firmware, _netdev(raw, name, port), table)


def _gid(raw: Raw, at: str, index: int, text: str) -> Gid | None:
    """None for the zero entry, and for what is no GID."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    return None if address.is_unspecified else Gid(index, address, raw.text(f"{at}/gid_attrs/types/{index}"))


def _netdev(raw: Raw, name: str, port: int) -> str | None:
    """From the GID table, else ibdev2netdev ("mlx5_0 port 1 ==> eth0 (Up)"), else the device's only network device."""
    for match, text in raw.matching(rf"/sys/class/infiniband/{re.escape(name)}/ports/{port}/gid_attrs/ndevs/\d+"):
        if match and text:
            return text
    told = re.search(rf"^{re.escape(name)} port {port} ==> (\S+)", raw.out("ibdev2netdev") or "", re.MULTILINE)
    if told:
        return told[1]
    listed = raw.node.get("hca_netdevs", {}).get(name, [])
    return str(listed[0]) if len(listed) == 1 else None


def gid_index(rdma: Rdma, hca: str, address: str, port: int = 1) -> int | None:
    """The index of the RoCE v2 entry that maps this IPv4 address on this device; None when it has none."""
    found = rdma.get(hca, port)
    entries = sorted(found.gids.items()) if found else []
    return next((index for index, gid in entries if gid.kind == V2 and gid.ipv4 == address), None)


def hcas_to(rdma: Rdma, network: Network, peer: str) -> tuple[str, ...]:
    """The devices whose network device has the route to `peer`; a port that is merely up may lead elsewhere."""
    route = network.routes.get(peer)
    return tuple(hca.name for hca in rdma.hcas if route and route.device and hca.netdev == route.device)


def wanted(text: str | None) -> tuple[tuple[str, int], ...]:
    """Device and port of each entry of *_CX7_IB. `=` in front and `:PORT` behind are NCCL's syntax; `^` (all but) names none."""
    if not text or text.startswith("^"):
        return ()
    words = [word.strip().partition(":") for word in text.removeprefix("=").split(",")]
    return tuple((name, int(port) if port.isdigit() else 1) for name, _, port in words if name)


def matching(rdma: Rdma, text: str | None) -> dict[str, tuple[Hca, ...]]:
    """The devices that each entry of *_CX7_IB means to NCCL: with `=` in front that name, else every name that begins so."""
    exact = (text or "").startswith("=")
    return {
        name: tuple(hca for hca in rdma.hcas if hca.port == port and (hca.name == name or (not exact and hca.name.startswith(name))))
        for name, port in wanted(text)
    }
