"""GID tables: the right index for each device, from layouts that the field reports describe."""

import pytest

from cluster.facts.raw import Raw
from cluster.facts.rdma import gid_index, hcas_to, parse, wanted
from tests.cluster.facts import recorded

AT = "/sys/class/infiniband/rocep1s0f1/ports/1"


def raw(files: dict[str, str], **node: object) -> Raw:
    return Raw(files, {}, node)


@pytest.mark.parametrize(("pairs", "index"), [(1, 3), (2, 5)])
def test_the_right_index_moves_with_the_link_local_pairs(pairs: int, index: int) -> None:
    """One pair: IPv4 at 2 and 3. NetworkManager's second pair pushes it to 4 and 5; the even one is RoCE v1."""
    rdma = parse(raw(recorded.hca("rocep1s0f1", "enp1s0f1np1", "10.0.0.1", pairs=pairs)))
    assert gid_index(rdma, "rocep1s0f1", "10.0.0.1") == index


def test_an_entry_counts_only_with_type_and_address() -> None:
    files = recorded.hca("rocep1s0f1", "enp1s0f1np1", "10.0.0.1")
    assert gid_index(parse(raw(files)), "rocep1s0f1", "10.0.0.9") is None
    assert gid_index(parse(raw(files)), "rocep1s0f0", "10.0.0.1") is None
    assert gid_index(parse(raw({**files, f"{AT}/gid_attrs/types/3": "IB/RoCE v1"})), "rocep1s0f1", "10.0.0.1") is None
    without = {path: text for path, text in files.items() if path != f"{AT}/gid_attrs/types/3"}
    assert gid_index(parse(raw(without)), "rocep1s0f1", "10.0.0.1") is None
    zero = {**files, f"{AT}/gids/3": "0000:0000:0000:0000:0000:0000:0000:0000"}
    assert gid_index(parse(raw(zero)), "rocep1s0f1", "10.0.0.1") is None


def test_a_link_local_entry_is_no_address() -> None:
    """The public recipe's test (not all zeros) accepts it."""
    (port,) = parse(raw(recorded.hca("rocep1s0f1", "enp1s0f1np1", None))).hcas
    assert [(index, gid.link_local, gid.ipv4) for index, gid in sorted(port.gids.items())] == [(0, True, None), (1, True, None)]


def test_a_port_in_full() -> None:
    (port,) = parse(raw(recorded.hca("rocep1s0f1", "enp1s0f1np1", "10.0.0.1"))).hcas
    assert (port.name, port.port, port.state, port.physical, port.up) == ("rocep1s0f1", 1, "4: ACTIVE", "5: LinkUp", True)
    assert (port.rate_gbit, port.firmware, port.netdev, port.ethernet) == (200.0, "28.45.4028", "enp1s0f1np1", True)
    assert str(port.gids[3]) == "RoCE v2 ::ffff:10.0.0.1"
    (down,) = parse(raw(recorded.hca("x", "y", None, up=False))).hcas
    assert (down.up, down.rate_gbit) == (False, 40.0)


def test_nothing_but_a_state_is_enough() -> None:
    (port,) = parse(raw({f"{AT}/state": "4: ACTIVE"})).hcas
    assert (port.physical, port.rate_gbit, port.firmware, port.netdev, dict(port.gids)) == (None, None, None, None, {})
    assert parse(raw({})).hcas == ()
    assert parse(raw({f"{AT}/state": "4: ACTIVE", f"{AT}/gids/0": "no gid"})).hcas[0].gids == {}


def test_the_network_device_from_three_sources() -> None:
    state = {f"{AT}/state": "4: ACTIVE"}
    told = {"code": 0, "out": "rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)\nrocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n", "err": ""}
    assert parse(Raw(state, {"ibdev2netdev": told}, {})).hcas[0].netdev == "enp1s0f1np1"
    assert parse(raw(state, hca_netdevs={"rocep1s0f1": ["enp9"]})).hcas[0].netdev == "enp9"
    assert parse(raw(state, hca_netdevs={"rocep1s0f1": ["enp9", "enp8"]})).hcas[0].netdev is None


def test_devices_to_a_peer_follow_the_route() -> None:
    """Both ports are up; only one leads to the other Spark."""
    told = recorded.answer("head")
    told["files"] |= recorded.hca("rocep1s0f0", "enp1s0f0np0", "10.9.0.1")
    facts = recorded.facts("head", told)
    assert facts.rdma.names == ("rocep1s0f0", "rocep1s0f1")
    assert hcas_to(facts.rdma, facts.network, "10.0.0.2") == ("rocep1s0f1",)
    assert hcas_to(facts.rdma, facts.network, "10.0.0.3") == ()


def test_devices_that_a_setting_names() -> None:
    assert wanted("=rocep1s0f0:1, roceP2p1s0f0") == (("rocep1s0f0", 1), ("roceP2p1s0f0", 1))
    assert wanted("mlx5_0:2") == (("mlx5_0", 2),)
    assert wanted("^mlx5_0") == wanted(None) == wanted("") == ()
