"""The fabric as the network stack sees it: addresses, devices, links, routes, MTU. Only kits of several nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.network import Interface
from cluster.facts.node import Facts
from cluster.facts.rdma import matching

FULL_MTU = 9000
SLOW_MBIT = 100_000  # kits with 100 Gb/s links work (GLM PR 115); a Spark's port is 200

ADDRESS_ABSENT = Kind("address-absent", "error", "the rank announces this address and nobody can answer there", "A3 A9 G18")
ADDRESS_LO = Kind("address-on-lo", "error", "an alias on lo answers on this machine only: ncclCommInitRank hangs")
DEVICE_PLACEHOLDER = Kind("device-placeholder", "error", "a template's name exists on no machine", "A10")
DEVICE_ABSENT = Kind("device-absent", "error", "Gloo and NCCL find no address for a device that is not there", "A10")
DEVICE_OTHER = Kind("device-other", "warning", "NCCL and Gloo go over that device, whatever address the rank announces", "A9 A11")
LINK_DOWN = Kind("link-down", "error", "there is nobody at the other end of the cable, or the port is off", "A1 A3")
LINK_SLOW = Kind("link-slow", "warning", "every token crosses this link, prefill most of all", "A13 A15")
WIRELESS = Kind("fabric-wireless", "warning", "rank traffic over Wi-Fi freezes or dies with it", "A5")
DEFAULT_ROUTE = Kind("fabric-default-route", "warning", "the address is on the way to the internet: usually the management network", "A5")
ROUTE_NONE = Kind("route-none", "error", "the ranks cannot meet", "A7 A9")
ROUTE_OTHER = Kind("route-other", "warning", "packets to that node leave by another device than the fabric's", "A5 A7")
PEER_SILENT = Kind("peer-silent", "warning", "no answer on the fabric address: cable, address or firewall", "A3")
MTU_MISMATCH = Kind(
    "mtu-mismatch", "error", "full packets of the one are dropped by the other: transfers hang after a good start", "A13 A14"
)
MTU_SMALL = Kind("mtu-small", "warning", "all-gather measured 18.9 GB/s before and 23.7 after both devices had 9000", "A13 A14")
PATH_MTU = Kind("path-mtu", "error", "a switch or host between drops full packets, although both ends agree", "A14")
SAME_SUBNET = Kind("same-subnet", "warning", "with both twins of a port in one subnet, replies may leave by the other one", "A13")
STEERING = Kind(
    "nccl-exported",
    "warning",
    "a rank as a process takes over these variables; a container does not: no effect, or an unexpected one",
    "A1 E2",
)

_PLACEHOLDER = re.compile(r"CHANGE|[XYZ]s?[XYZ]|[psfn][XYZ](?![a-z])|<|>")


def holder(facts: Facts, scene: Scene) -> Interface | None:
    """The interface with the node's configured address."""
    address = scene.address(facts.role)
    return facts.network.holder(address) if address else None


def addresses(facts: Facts, scene: Scene) -> Iterator[Finding]:
    address, variable = scene.address(facts.role), scene.variable(facts.role, "ip")
    if not scene.several or not address or not facts.network.known:
        return
    at = facts.network.holder(address)
    if at is None:
        own = [f"{each.ip} on {face.name}" for face in facts.network.interfaces.values() for each in face.addresses if face.name != "lo"]
        what = f"{variable} is {address}, which no device has; there are {', '.join(own) or 'none'}"
        yield ADDRESS_ABSENT.at(facts.role, what, f"ip addr add {address}/24 dev DEVICE there (and make it permanent), or set {variable}")
    elif at.name == "lo" and scene.sparks:
        yield ADDRESS_LO.at(
            facts.role, f"{variable} {address} is an alias on lo", "remove the alias; give the address to the ConnectX-7 device"
        )


def devices(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """*_CX7_IF exists on that node and is the one with the address."""
    name, variable = scene.effective.settings.node(facts.role).cx7_if, scene.variable(facts.role, "cx7_if")
    if not scene.several or not name:
        return
    there, at = facts.network.interfaces, holder(facts, scene)
    right = f"{variable}={at.name}" if at else f"{variable}=DEVICE, as `ip -br addr` shows it"
    if _PLACEHOLDER.search(name):
        yield DEVICE_PLACEHOLDER.at(facts.role, f"{variable} is {name}, a placeholder", right)
    elif there and name not in there:
        yield DEVICE_ABSENT.at(facts.role, f"{variable} is {name}; there are {', '.join(n for n in there if n != 'lo')}", right)
    elif at and at.name not in (name, "lo") and scene.direct:
        yield DEVICE_OTHER.at(facts.role, f"{variable} is {name}, but {scene.address(facts.role)} is on {at.name}", right)


def links(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """The device of the address, and *_CX7_IF where it is another."""
    at, named = holder(facts, scene), facts.network.interfaces.get(scene.effective.settings.node(facts.role).cx7_if or "")
    for face in dict.fromkeys(each for each in (at, named) if each and scene.several):
        if face.carrier is False:
            yield LINK_DOWN.at(facts.role, f"{face.name} has no carrier; expected: up", f"seat the cable; ip link set {face.name} up")
        elif scene.sparks and scene.direct and face.speed_mbit and face.speed_mbit < SLOW_MBIT:
            what = f"{face.name} runs at {face.speed_mbit / 1000:g} Gb/s; a ConnectX-7 port of a Spark has 200"
            yield LINK_SLOW.at(facts.role, what, "another cable or port; power the Spark off for a minute (a port can come up degraded)")
        if face.wireless:
            yield WIRELESS.at(facts.role, f"{face.name} is wireless", "the address of the ConnectX-7 device in *_IP and *_CX7_IF")


def default_route(facts: Facts, scene: Scene) -> Iterator[Finding]:
    at = holder(facts, scene)
    if scene.direct and scene.sparks and at and at.name in facts.network.default_devices and not at.wireless:
        what = f"{scene.address(facts.role)} is on {at.name}, which has the default route"
        yield DEFAULT_ROUTE.at(facts.role, what, "the address of the ConnectX-7 device, unless the fabric is also the way out")


def routes(facts: Facts, scene: Scene) -> Iterator[Finding]:
    at = holder(facts, scene)
    for peer, address in scene.peers(facts.role).items():
        route, problem = facts.network.routes.get(address), facts.network.problems.get(address)
        fix = f"ip route get {address} there; put both addresses into one subnet, or add the route"
        if problem:
            yield ROUTE_NONE.at(facts.role, f"no route to {peer} {address}: {problem.splitlines()[-1]}", fix)
        elif route and route.gateway:
            yield ROUTE_OTHER.at(facts.role, f"{peer} {address} is reached through the gateway {route.gateway} on {route.device}", fix)
        elif route and route.device and at and route.device not in (at.name, "lo") and scene.direct:
            yield ROUTE_OTHER.at(facts.role, f"{peer} {address} is reached by {route.device}; expected {at.name}", fix)


def silence(facts: Facts, scene: Scene) -> Iterator[Finding]:
    for peer, address in scene.peers(facts.role).items():
        reach = facts.network.reach.get(address)
        if reach and reach.silent:
            what = f"{peer} {address} does not answer on port 22 ({reach.tcp}){' nor to ping' if reach.small is False else ''}"
            yield PEER_SILENT.at(
                facts.role, what, f"ping {address} there; sudo ufw status; check the cable and {scene.variable(peer, 'ip')}"
            )
        elif reach and reach.small and reach.full is False:
            what = f"packets of {reach.mtu} bytes do not reach {peer} {address}, small ones do"
            yield PATH_MTU.at(facts.role, what, "the same MTU on both ends and on the switch between them")


def fabric(facts: Facts, scene: Scene) -> list[Interface]:
    """The devices that carry the ranks' traffic: that of the address; with a cable a pair, those of the RoCE devices."""
    hcas = matching(facts.rdma, scene.effective.settings.node(facts.role).cx7_ib)
    names = [hca.netdev for found in hcas.values() for hca in found]
    at = holder(facts, scene)
    faces = [at] if scene.direct else [facts.network.interfaces.get(name or "") for name in dict.fromkeys(names)]
    return [face for face in faces if face and face.name != "lo"]


def mtu(scene: Scene) -> Iterator[Finding]:
    found = {role: fabric(facts, scene) for role, facts in scene.nodes.items() if scene.several}
    sizes = {role: sorted({face.mtu for face in faces if face.mtu}) for role, faces in found.items()}
    different = differing({role: " and ".join(map(str, each)) or None for role, each in sizes.items()})
    if different or any(len(each) > 1 for each in sizes.values()):
        what = different or "; ".join(f"{role} {' and '.join(map(str, each))}" for role, each in sizes.items())
        yield MTU_MISMATCH.at(CLUSTER, f"the fabric's MTU is {what}", f"ip link set DEVICE mtu {FULL_MTU}, on every node")
        return
    for role, face in [(role, face) for role, faces in found.items() for face in faces]:
        if scene.sparks and face.mtu and face.mtu < FULL_MTU:
            yield MTU_SMALL.at(
                role, f"{face.name} has MTU {face.mtu}; expected {FULL_MTU}", f"ip link set {face.name} mtu {FULL_MTU}, on both twins"
            )


def twins(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Two devices with addresses in one subnet."""
    owned = [(str(each.network), face.name) for face in facts.network.interfaces.values() for each in face.addresses if face.name != "lo"]
    subnets: dict[str, list[str]] = {}
    for net, name in owned:
        subnets.setdefault(net, []).append(name)
    at = holder(facts, scene)
    for net, names in subnets.items():
        if scene.sparks and scene.several and at and at.name in names and len({*names}) > 1:
            yield SAME_SUBNET.at(
                facts.role, f"{' and '.join(sorted({*names}))} both have an address in {net}", "a subnet of its own for each twin"
            )


def steering(facts: Facts, scene: Scene) -> Iterator[Finding]:
    found = facts.system.login.steering
    if found and scene.several:
        names = ", ".join(f"{name}={value}" for name, value in sorted(found.items()))
        yield STEERING.at(
            facts.role, f"exported on the node: {names}", "unset them there (~/.bashrc, /etc/environment); use the settings instead"
        )


CHECKS: tuple[Check, ...] = (
    *map(each_node, (addresses, devices, links, default_route, routes, silence)), mtu, *map(each_node, (twins, steering)),
)  # fmt: skip
