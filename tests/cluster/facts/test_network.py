"""Interfaces and routes from `ip -j`, whose fields differ between versions."""

import json
from typing import Any

from cluster.facts.network import Reach, Route, parse
from cluster.facts.raw import Raw
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import ran


def network(runs: dict[str, Any], files: dict[str, str] | None = None, **node: Any) -> Any:
    return parse(Raw(files or {}, runs, node))


def test_a_healthy_node() -> None:
    seen = recorded.facts("head", recorded.answer("head")).network
    face = seen.interfaces["enp1s0f1np1"]
    assert (face.mtu, face.carrier, face.wireless, face.speed_mbit, face.link_local6) == (9000, True, False, 200000, 1)
    assert [str(address) for address in face.addresses] == ["10.0.0.1/24"]
    assert seen.routes == {"10.0.0.2": Route("enp1s0f1np1", None, "10.0.0.1")}
    assert (seen.default_devices, seen.problems, seen.known) == (("enP7s7",), {}, True)
    assert seen.holder("10.0.0.1") == face
    assert seen.holder("10.0.0.7") is None


def test_the_kernels_own_mtu_wins() -> None:
    runs = {"addr": ran(json.dumps([recorded.interface("eth0", "10.0.0.1", mtu=9000)]))}
    assert network(runs, {"/sys/class/net/eth0/mtu": "1500"}).interfaces["eth0"].mtu == 1500


def test_missing_fields_are_unknown_not_errors() -> None:
    """iproute2 6.1 leaves out `dev` in some answers."""
    runs = {
        "addr": ran('[{"ifname":"eth0"},{"no":"name"},7]'),
        "default": ran('[{"dst":"default","gateway":"10.0.0.254"}]'),
        "route 10.0.0.2": ran('[{"dst":"10.0.0.2"}]'),
    }
    seen = network(runs)
    assert seen.interfaces["eth0"].mtu is None
    assert seen.interfaces["eth0"].carrier is None
    assert seen.default_devices == ()
    assert seen.routes["10.0.0.2"] == Route(None, None, None)


def test_without_ip_there_are_still_names_and_mtus() -> None:
    files = {"/sys/class/net/eth0/mtu": "9000", "/sys/class/net/eth0/operstate": "down", "/sys/class/net/eth0/speed": "-1"}
    seen = network({"addr": None}, files)
    assert (seen.known, seen.interfaces["eth0"].mtu, seen.interfaces["eth0"].carrier) == (False, 9000, False)
    assert seen.interfaces["eth0"].speed_mbit is None


def test_operstate_unknown_says_nothing() -> None:
    files = {"/sys/class/net/eth0/mtu": "9000", "/sys/class/net/eth0/operstate": "unknown"}
    assert network({}, files).interfaces["eth0"].carrier is None


def test_no_carrier() -> None:
    links = [recorded.interface("eth0", "10.0.0.1", up=False)]
    assert network({"addr": ran(json.dumps(links))}).interfaces["eth0"].carrier is False


def test_no_route_and_a_gateway() -> None:
    runs = {
        "route 10.0.0.2": ran("", code=2, err="RTNETLINK answers: Network is unreachable"),
        "route 10.0.0.3": ran('[{"dst":"10.0.0.3","gateway":"192.168.1.1","dev":"wlP9s9","prefsrc":"192.168.1.7"}]'),
    }
    seen = network(runs)
    assert seen.problems == {"10.0.0.2": "RTNETLINK answers: Network is unreachable"}
    assert seen.routes == {"10.0.0.3": Route("wlP9s9", "192.168.1.1", "192.168.1.7")}


def test_an_address_on_lo_loses_against_a_device() -> None:
    links = [
        {**recorded.LO, "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 32}]},
        recorded.interface("eth0", "10.0.0.1"),
    ]
    assert network({"addr": ran(json.dumps(links))}).holder("10.0.0.1").name == "eth0"


def test_how_a_peer_answers() -> None:
    reach = {"a": {"ping": {"small": 0, "full": 1, "mtu": 9000}, "tcp": "open"}, "b": {"ping": None, "tcp": "timed out"}}
    seen = network({}, reach=reach).reach
    assert seen == {"a": Reach("open", True, False, 9000), "b": Reach("timed out", None, None, None)}
    assert [reach.silent for reach in seen.values()] == [False, True]
    assert not Reach("refused", None, None, None).silent
    assert not Reach("timed out", True, True, 9000).silent  # port 22 is filtered, the host is there
    assert not Reach(None, None, None, None).silent
