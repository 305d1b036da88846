"""RoCE devices and GID indexes, per rank and per device. Only Sparks: no other kit has them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.doctor.checks_network import holder
from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.node import Facts
from cluster.facts.rdma import Hca, gid_index, hcas_to, matching

HCA_PLACEHOLDER = Kind("hca-placeholder", "error", "a template's name exists on no machine: NCCL finds no device", "A10")
HCA_ABSENT = Kind("hca-absent", "error", "NCCL finds no device of that name and fails, or falls back to sockets", "A10")
HCA_DOWN = Kind("hca-down", "error", "the rank dies about a minute into the start, in ibv_modify_qp", "A1")
HCA_UNSET = Kind("hca-unset", "warning", "NCCL then uses every active port, also one that leads elsewhere", "A7")
HCA_OTHER = Kind("hca-other", "warning", "the device is up, but the way to the other node is not over it", "A7")
HCA_SLOW = Kind("hca-slow", "warning", "a port that came up degraded is several times slower", "A15")
HCA_NO_ADDRESS = Kind("hca-no-address", "error", "without an IPv4 address the device has no usable GID", "A3")
GID_MISSING = Kind("gid-missing", "error", "ibv_modify_qp fails with errno 61 about a minute into the start", "A1")
GID_WRONG = Kind("gid-wrong", "error", "ibv_modify_qp fails with errno 61 about a minute into the start", "A1 A2 A6")
GID_SPLIT = Kind("gid-split", "error", "one index serves all devices of a rank, and on these none is right on every one", "A3")
GID_AUTO = Kind("gid-auto", "info", "unset, NCCL takes the RoCE v2 entry of each device itself: that survives a moved table", "A2")
GID_MOVED = Kind("gid-link-local-twice", "warning", "a second link-local pair moves the IPv4 entries after a reboot", "A3")
SECOND_RAIL = Kind("second-rail", "info", "a port is two devices; with both in use prefill gained 5 %, decode nothing", "A3 A13")
FIRMWARE = Kind("firmware-mismatch", "warning", "two versions of one adapter's firmware are a difference nobody looks for", "A20")

_PLACEHOLDER = re.compile(r"CHANGE|[pPsf][XYZ]")
_DEGRADED_GBIT = 100


def there(facts: Facts, scene: Scene) -> list[Hca]:
    """The devices that *_CX7_IB means, as far as the node has them."""
    found = matching(facts.rdma, scene.effective.settings.node(facts.role).cx7_ib) if scene.sparks else {}
    return list({(hca.name, hca.port): hca for hcas in found.values() for hca in hcas}.values())


def right_index(facts: Facts, scene: Scene, hca: Hca) -> int | None:
    """The RoCE v2 entry for the node's own address; else for one of the device's; else (bond, VLAN) for any that the node has."""
    face = facts.network.interfaces.get(hca.netdev or "")
    every = [each for other in facts.network.interfaces.values() if other.name != "lo" for each in other.addresses]
    candidates = [scene.address(facts.role), *(str(each.ip) for each in (*(face.addresses if face else ()), *every))]
    found = (gid_index(facts.rdma, hca.name, address, hca.port) for address in candidates if address)
    return next((index for index in found if index is not None), None)


def exist(facts: Facts, scene: Scene) -> Iterator[Finding]:
    variable = scene.variable(facts.role, "cx7_ib")
    fix = f"{variable}={','.join(suggested(facts, scene)) or 'DEVICE, as `rdma link` shows it'}"
    found = matching(facts.rdma, scene.effective.settings.node(facts.role).cx7_ib) if scene.sparks else {}
    for name, hcas in found.items():
        if _PLACEHOLDER.search(name):
            yield HCA_PLACEHOLDER.at(facts.role, f"{variable} names {name}, a placeholder", fix)
        elif not hcas:
            yield HCA_ABSENT.at(facts.role, f"{variable} names {name}; there are {', '.join(facts.rdma.names) or 'no RoCE devices'}", fix)
    for hca in there(facts, scene):
        if hca.up is False:
            yield HCA_DOWN.at(facts.role, f"{hca.name} is {hca.state} ({hca.physical}); expected ACTIVE", f"seat its cable; {fix}")
        elif hca.rate_gbit and hca.rate_gbit < _DEGRADED_GBIT:
            what = f"{hca.name} has {hca.rate_gbit:g} Gb/s; expected {_DEGRADED_GBIT} or more"
            yield HCA_SLOW.at(facts.role, what, "power the Spark off for a minute")


def suggested(facts: Facts, scene: Scene) -> tuple[str, ...]:
    """The devices on the way to the other nodes."""
    return tuple(
        dict.fromkeys(name for address in scene.peers(facts.role).values() for name in hcas_to(facts.rdma, facts.network, address))
    )


def unset(facts: Facts, scene: Scene) -> Iterator[Finding]:
    if scene.sparks and scene.several and not scene.effective.settings.node(facts.role).cx7_ib:
        names, variable = suggested(facts, scene), scene.variable(facts.role, "cx7_ib")
        active = [hca.name for hca in facts.rdma.hcas if hca.up]
        yield HCA_UNSET.at(
            facts.role, f"{variable} is not set; active are {', '.join(active) or 'none'}", f"{variable}={','.join(names) or 'DEVICE'}"
        )


def leads(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """With one cable a pair, at least one of the devices is on the way to the peer."""
    names, right = [hca.name for hca in there(facts, scene)], suggested(facts, scene)
    if scene.direct and right and names and not {*names} & {*right}:
        variable = scene.variable(facts.role, "cx7_ib")
        yield HCA_OTHER.at(
            facts.role, f"{variable} is {','.join(names)}; the route to the others is over {','.join(right)}", f"{variable}={right[0]}"
        )


def configured(scene: Scene, role: str) -> tuple[str, int | None]:
    """The variable that decides the index of this rank, and its value."""
    own = scene.effective.settings.node(role).gid
    if own is not None:
        return scene.variable(role, "gid"), own
    return "NCCL_IB_GID_INDEX", scene.effective.settings.nccl_ib_gid_index


def gids(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """The configured index against the right one, on every device of the rank."""
    variable, index = configured(scene, facts.role)
    hcas = [hca for hca in there(facts, scene) if hca.up is not False and hca.ethernet]
    right = {hca.name: right_index(facts, scene, hca) for hca in hcas}
    for hca in hcas:
        yield from _none(facts, scene, hca)
    usable = {name: at for name, at in right.items() if at is not None}
    shown = ", ".join(f"{name} {at}" for name, at in usable.items())
    own = scene.variable(facts.role, "gid")
    if index is None and usable:
        same = len({*usable.values()}) == 1
        hint = f"nothing; to pin it: {own}={next(iter(usable.values()))}" if same else "nothing: no single index would be right"
        yield GID_AUTO.at(facts.role, f"no GID index is set; right would be {shown}", hint)
    elif len({*usable.values()}) > 1:
        first = next(iter(usable))
        hint = f"leave {variable} empty; or a single rail: {scene.variable(facts.role, 'cx7_ib')}={first} and {own}={usable[first]}"
        yield GID_SPLIT.at(facts.role, f"{variable} is {index}; right are {shown}", hint)
    elif index is not None:
        for hca in hcas:
            at = right[hca.name]
            if at is not None and at != index:
                what = f"{variable} is {index}: on {hca.name} that is {hca.gids.get(index, 'empty')}; right is {at} ({hca.gids[at]})"
                yield GID_WRONG.at(facts.role, what, f"{own}={at}, or leave {variable} empty")


def _none(facts: Facts, scene: Scene, hca: Hca) -> Iterator[Finding]:
    """A device without any right entry."""
    if right_index(facts, scene, hca) is not None:
        return
    face = facts.network.interfaces.get(hca.netdev or "")
    table = "; ".join(f"{index}: {gid}" for index, gid in sorted(hca.gids.items())) or "empty"
    if face and not face.addresses and not any(gid.ipv4 for gid in hca.gids.values()):
        what = f"{hca.name} ({hca.netdev}) has no IPv4 address; its GIDs: {table}"
        yield HCA_NO_ADDRESS.at(
            facts.role, what, f"give {hca.netdev} an address, or take {hca.name} out of {scene.variable(facts.role, 'cx7_ib')}"
        )
    elif facts.network.known:
        own = [str(each.ip) for each in face.addresses] if face else [scene.address(facts.role)]
        what = f"{hca.name} has no RoCE v2 entry for {', '.join(map(str, own)) or 'its address'}; its GIDs: {table}"
        hint = "set ipv6.addr-gen-mode eui64 for the connection and rebind the mlx5 driver, or restart the node"
        yield GID_MISSING.at(facts.role, what, hint)


def moved(facts: Facts, scene: Scene) -> Iterator[Finding]:
    for hca in there(facts, scene):
        local = {str(gid.address) for gid in hca.gids.values() if gid.link_local}
        if len(local) > 1:
            hint = "nmcli connection modify NAME ipv6.addr-gen-mode eui64, then rebind the mlx5 driver; or leave the GID index empty"
            yield GID_MOVED.at(facts.role, f"{hca.name} has {len(local)} link-local GIDs: {', '.join(sorted(local))}", hint)


def rails(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """An active device with an address that is not used."""
    names = {hca.name for hca in there(facts, scene)}
    for hca in facts.rdma.hcas:
        face = facts.network.interfaces.get(hca.netdev or "")
        at = holder(facts, scene)
        if scene.direct and names and hca.up and hca.name not in names and face and face.addresses and face != at:
            hint = f"{scene.variable(facts.role, 'cx7_ib')}={','.join(sorted(names))},{hca.name} on every node, if both have the way"
            yield SECOND_RAIL.at(facts.role, f"{hca.name} ({hca.netdev}) is active with {face.addresses[0]} and not in use", hint)


def firmware(scene: Scene) -> Iterator[Finding]:
    found = {role: next((hca.firmware for hca in facts.rdma.hcas if hca.firmware), None) for role, facts in scene.nodes.items()}
    different = differing(found) if scene.sparks else ""
    if different:
        yield FIRMWARE.at(CLUSTER, f"ConnectX-7 firmware: {different}", "update the older node (DGX OS updates carry the firmware)")


CHECKS: tuple[Check, ...] = (*map(each_node, (exist, unset, leads, gids, moved, rails)), firmware)
