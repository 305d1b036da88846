"""What the agent would answer on two healthy Sparks, written by hand in the shape of the tools' output.

Sources: the public field reports (device names, GID tables, clocks, versions), the kernel's sysfs, iproute2, nvidia-smi and Docker.
No Spark was asked: what a GB10 prints where the reports are silent is left out, as the parsers must accept.
"""

from __future__ import annotations

import json
from typing import Any

from cluster.facts.node import Facts, read
from cluster.facts.system import Clock

GIB = 1 << 30
LAYERS = ["sha256:" + "a1" * 32, "sha256:" + "b2" * 32]
MEMINFO = """\
MemTotal:       127600000 kB
MemFree:        20000000 kB
MemAvailable:   118000000 kB
Buffers:          400000 kB
Cached:         96000000 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
"""
GPU = """\
name, driver_version, vbios_version, clocks.current.sm [MHz], clocks.max.sm [MHz], power.draw [W], \
temperature.gpu, utilization.gpu [%], memory.used [MiB]
NVIDIA GB10, 580.173.02, 9A.0B.1E.00.00, 208 MHz, 3003 MHz, 4.53 W, 39, 0 %, [N/A]
"""
INFO = {
    "ServerVersion": "29.2.1",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "Runtimes": {"io.containerd.runc.v2": {}, "nvidia": {}, "runc": {}},
    "DockerRootDir": "/var/lib/docker",
}
SNAPSHOT = "~/.cache/huggingface/hub/models--m/snapshots/76c0"
NODES = {
    "head": {"address": "10.0.0.1", "netdev": "enp1s0f1np1", "hca": "rocep1s0f1", "management": "192.168.1.11"},
    "worker": {"address": "10.0.0.2", "netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "management": "192.168.1.12"},
}


def ran(out: str, code: int | None = 0, err: str = "") -> dict[str, Any]:
    return {"code": code, "out": out, "err": err}


def mapped(address: str) -> str:
    """The GID that maps an IPv4 address, as sysfs writes it."""
    a, b, c, d = map(int, address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def gid_table(hca: str, netdev: str, address: str | None, *, pairs: int = 1) -> dict[str, str]:
    """A port's table: `pairs` of link-local entries (v1, v2), then the IPv4 pair; so the right index is 2 x pairs + 1."""
    at = f"/sys/class/infiniband/{hca}/ports/1"
    found: dict[str, str] = {}
    entries = [f"fe80:0000:0000:0000:4ebb:47ff:fe{pair:02x}:1234" for pair in range(pairs) for _ in "12"]
    entries += [mapped(address)] * 2 if address else []
    for index, gid in enumerate(entries):
        kind = "RoCE v2" if index % 2 else "IB/RoCE v1"
        found |= {f"{at}/gids/{index}": gid, f"{at}/gid_attrs/types/{index}": kind, f"{at}/gid_attrs/ndevs/{index}": netdev}
    return found


def hca(name: str, netdev: str, address: str | None, *, pairs: int = 1, up: bool = True) -> dict[str, str]:
    at = f"/sys/class/infiniband/{name}"
    return {
        f"{at}/fw_ver": "28.45.4028",
        f"{at}/ports/1/state": "4: ACTIVE" if up else "1: DOWN",
        f"{at}/ports/1/phys_state": "5: LinkUp" if up else "3: Disabled",
        f"{at}/ports/1/rate": "200 Gb/sec (4X HDR)" if up else "40 Gb/sec (4X QDR)",
        f"{at}/ports/1/link_layer": "Ethernet",
        **gid_table(name, netdev, address, pairs=pairs),
    }


def interface(name: str, address: str | None, *, mtu: int = 9000, up: bool = True, prefix: int = 24) -> dict[str, Any]:
    """One element of `ip -j addr`, with the fields that iproute2 prints."""
    flags = ["BROADCAST", "MULTICAST", "UP", *(["LOWER_UP"] if up else ["NO-CARRIER"])]
    own = [{"family": "inet", "local": address, "prefixlen": prefix, "scope": "global", "label": name}] if address else []
    local = [{"family": "inet6", "local": "fe80::4ebb:47ff:fe00:1234", "prefixlen": 64, "scope": "link"}]
    state = "UP" if up else "DOWN"
    return {"ifname": name, "flags": flags, "mtu": mtu, "operstate": state, "addr_info": [*own, *local]}


LO = {
    "ifname": "lo",
    "flags": ["LOOPBACK", "UP", "LOWER_UP"],
    "mtu": 65536,
    "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8, "scope": "host"}],
}


def nccl(**changed: Any) -> dict[str, Any]:
    """The library in the image as the agent reads it; size and words are those of NVIDIA's 2.32.3, the version is the recipe's."""
    path = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"
    library = {"path": path, "sha256": "5a" * 32, "bytes": 343864936, "version": "2.30.7+cuda13.0", "marks": [SUBNET_WORD], **changed}
    return {"image": "sha256:1111", "libraries": [library], "host": None}


SUBNET_WORD = "NCCL_IB_SUBNET_AWARE_ROUTING"


def folder(path: str, free: int, owner: int = 1000, kind: str = "ext4") -> dict[str, Any]:
    real = path.replace("~", "/home/spark")
    return {"path": path, "exists": True, "real": real, "owner": owner, "writable": True, "free_bytes": free, "type": kind}


def model() -> dict[str, Any]:
    return {
        "path": SNAPSHOT, "exists": True, "config": True, "index": True, "named": 83, "missing": [], "empty": [], "bytes": 164 * GIB,
    }  # fmt: skip


def image(**changed: Any) -> str:
    row = {"id": "sha256:1111", "digests": [], "layers": LAYERS, "arch": "arm64", "user": "", "env": ["PATH=/usr/bin"], **changed}
    return json.dumps(row) + "\n"


def container(**changed: Any) -> str:
    row = {"id": "c" * 64, "name": "/other", "state": "running", "image": "other:1", "record": "", "restart": "no", "gpu": None, **changed}
    return json.dumps(row) + "\n"


def login() -> dict[str, Any]:
    tools = {tool: f"/usr/bin/{tool}" for tool in ("docker", "nvidia-smi", "ip", "rsync")}
    return {
        "uid": 1000, "user": "spark", "home": "/home/spark", "groups": ["spark", "docker"], "path": "/usr/local/bin:/usr/bin",
        "tools": tools, "elsewhere": {tool: [path] for tool, path in tools.items()}, "steering": {},
    }  # fmt: skip


def answer(role: str) -> dict[str, Any]:
    """A healthy node's whole answer; tests change parts of it."""
    own, peer = NODES[role], NODES["worker" if role == "head" else "head"]
    route = [{"dst": peer["address"], "dev": own["netdev"], "prefsrc": own["address"], "flags": [], "uid": 1000, "cache": []}]
    links = [LO, interface(own["netdev"], own["address"]), interface("enP7s7", own["management"], mtu=1500)]
    files = {
        **hca(own["hca"], own["netdev"], own["address"]),
        f"/sys/class/net/{own['netdev']}/speed": "200000",
        "/sys/class/net/enP7s7/speed": "1000",
        "/proc/meminfo": MEMINFO.strip(),
        "/proc/vmstat": "nr_free_pages 5000000\npgmajfault 1234\noom_kill 0",
        "/proc/uptime": "86400.00 1600000.00",
        "/proc/sys/kernel/random/boot_id": f"boot-of-{role}",
        "/proc/sys/kernel/osrelease": "6.17.0-1031-nvidia",
        "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"',
    }
    return {"files": files, "runs": _runs(peer["address"], own, links, route), "node": _node(role, own, peer["address"]), "clock": CLOCK}


CLOCK = {"begin_unix_s": 0.0, "end_unix_s": 0.0}


def _runs(peer: str, own: dict[str, str], links: Any, route: Any) -> dict[str, Any]:
    """What the commands said."""
    return {
        "addr": ran(json.dumps(links)),
        "default": ran('[{"dst":"default","gateway":"192.168.1.1","dev":"enP7s7","protocol":"dhcp","metric":100}]'),
        f"route {peer}": ran(json.dumps(route)),
        "ibdev2netdev": ran(f"{own['hca']} port 1 ==> {own['netdev']} (Up)\n"),
        "gpu": ran(GPU),
        "gpu-reasons": ran("clocks_event_reasons.active\n0x0000000000000001\n"),
        "gpu-apps": ran("pid, process_name, used_gpu_memory [MiB]\n"),
        "linger": ran("Linger=no\n"),
        "remove-ipc": ran("b true\n"),
        "target": ran("multi-user.target\n"),
        "earlyoom": ran("inactive\n", code=3),
        "docker-info": ran(json.dumps(INFO)),
        "image": ran(image()),
        "containers": ran(""),
    }


def _node(role: str, own: dict[str, str], peer: str) -> dict[str, Any]:
    """What the agent looked up by itself."""
    return {
        "login": login(),
        "page_bytes": 4096,
        "wireless": ["wlP9s9"],
        "hca_netdevs": {own["hca"]: [own["netdev"]]},
        "reach": {peer: {"ping": {"small": 0, "full": 0, "mtu": 9000}, "tcp": "open"}},
        "ports": {"8888": None, "29521": None} if role == "head" else {},
        "folders": {
            "state": folder("~/.local/state/spark-lab/spark2", 900 * GIB),
            "hf_home": folder("~/.cache/huggingface", 900 * GIB),
            "cache_root": folder("~/.cache/spark-lab", 900 * GIB),
            "docker": folder("/var/lib/docker", 900 * GIB, owner=0),
        },
        "models": {"model": model(), "drafter": {**model(), "index": False, "named": 1}},
        "hub_rests": [],
        "processes": {"list": [], "zombies": 0},
        "record": None,
        "lock": None,
        "nccl": nccl(),
    }


def facts(role: str, told: dict[str, Any], clock: Clock | None = None) -> Facts:
    return read(role, told, clock or Clock(-0.1, 0.1))
