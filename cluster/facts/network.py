"""Interfaces, addresses and routes: `ip -j` (iproute2; fields differ between versions, none is required) and /sys/class/net."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.facts.raw import Raw


@dataclass(frozen=True)
class Interface:
    """One network device. carrier: a cable with somebody at its other end. speed: Mb/s, None where the kernel has none."""

    name: str
    mtu: int | None
    carrier: bool | None
    wireless: bool
    speed_mbit: int | None
    addresses: tuple[ipaddress.IPv4Interface, ...]
    link_local6: int

    def has(self, address: str) -> bool:
        return any(str(own.ip) == address for own in self.addresses)


@dataclass(frozen=True)
class Route:
    """What `ip route get` says: device, next hop when there is one, own address used."""

    device: str | None
    gateway: str | None
    source: str | None


@dataclass(frozen=True)
class Reach:
    """How a peer answered: TCP port 22 ("open", "refused", else why not); whether a small and a full packet came back."""

    tcp: str | None
    small: bool | None
    full: bool | None
    mtu: int | None

    @property
    def silent(self) -> bool:
        return self.tcp not in (None, "open", "refused") and self.small is not True


@dataclass(frozen=True)
class Network:
    """known: whether the addresses could be read at all. problems: peer -> why there is no route to it."""

    known: bool
    interfaces: Mapping[str, Interface]
    routes: Mapping[str, Route]
    problems: Mapping[str, str]
    default_devices: tuple[str, ...]
    reach: Mapping[str, Reach]

    def holder(self, address: str) -> Interface | None:
        """The interface that has this address; one that is not lo wins."""
        found = sorted((each for each in self.interfaces.values() if each.has(address)), key=lambda each: each.name == "lo")
        return found[0] if found else None


def parse(raw: Raw) -> Network:
    rows = {str(row["ifname"]): row for row in raw.rows("addr") if row.get("ifname")}
    names = sorted({*rows, *(match[1] for match, _ in raw.matching(r"/sys/class/net/([^/]+)/mtu"))})
    peers = [key.partition(" ")[2] for key in raw.runs if key.startswith("route ")]
    defaults = [str(row["dev"]) for row in raw.rows("default") if row.get("dev")]
    problems = {peer: raw.error(f"route {peer}") for peer in peers}
    return Network(
        raw.data("addr") is not None,
        {name: _interface(raw, name, rows.get(name, {})) for name in names},
        {peer: route for peer in peers if (route := _route(raw.rows(f"route {peer}")))},
        {peer: why for peer, why in problems.items() if why},
        tuple(dict.fromkeys(defaults)),
        {peer: _reach(told) for peer, told in raw.node.get("reach", {}).items()},
    )


def _interface(raw: Raw, name: str, row: Mapping[str, Any]) -> Interface:
    at, listed = f"/sys/class/net/{name}", row.get("addr_info") or []
    speed = raw.number(f"{at}/speed")
    link_local = [own for own in listed if own.get("family") == "inet6" and own.get("scope") == "link"]
    return Interface(
        name, raw.number(f"{at}/mtu") or row.get("mtu"), _carrier(row, raw.text(f"{at}/operstate")),
        name in raw.node.get("wireless", ()), speed if speed and speed > 0 else None,
        tuple(address for own in listed if own.get("family") == "inet" and (address := _address(own))), len(link_local),
    )  # fmt: skip


def _address(own: Mapping[str, Any]) -> ipaddress.IPv4Interface | None:
    try:
        return ipaddress.IPv4Interface(f"{own.get('local')}/{own.get('prefixlen', 32)}")
    except ValueError:
        return None


def _carrier(row: Mapping[str, Any], state: str | None) -> bool | None:
    """From the flags, else the operational state; "unknown" (lo, some drivers) says nothing."""
    flags = row.get("flags")
    if flags:
        return "LOWER_UP" in flags
    return None if state in (None, "unknown") else state == "up"


def _route(rows: list[dict[str, Any]]) -> Route | None:
    row = rows[0] if rows else None
    return Route(row.get("dev"), row.get("gateway") or row.get("via", {}).get("host"), row.get("prefsrc")) if row else None


def _reach(told: Mapping[str, Any]) -> Reach:
    ping = told.get("ping") or {}
    small, full = (None if ping.get(size) is None else ping[size] == 0 for size in ("small", "full"))
    return Reach(told.get("tcp"), small, full, ping.get("mtu"))
