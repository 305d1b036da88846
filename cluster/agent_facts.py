"""The node agent, part for looking: everything that doctor judges, as raw text by its source. Changes nothing on the node.

Sent after agent.py and agent_cluster.py in the same program, so the names below come from there. Standard library only.
No tool, file or field need exist: what cannot be read is left out, or None. Every command has a time limit of its own, and all
run at once, so that one that hangs costs its limit and no more.
"""

try:
    from cluster.agent import ACTIONS, describe, paths, port_holder, read_json, stat_fields
    from cluster.agent_cluster import LABEL, existing, lock_path
    from cluster.agent_nccl import nccl
except ImportError:  # sent as one text: everything is here already
    pass

import concurrent.futures
import glob
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import time

COMMAND_S = 6
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_FILES = (
    "/sys/class/infiniband/*/fw_ver",
    *(f"/sys/class/infiniband/*/ports/*/{name}" for name in ("state", "phys_state", "rate", "link_layer")),
    *(f"/sys/class/net/*/{name}" for name in ("operstate", "mtu", "speed")),
    "/proc/meminfo",
    "/proc/swaps",
    "/proc/vmstat",
    "/proc/uptime",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/osrelease",
    "/etc/os-release",
    "/etc/systemd/logind.conf",
    "/etc/systemd/logind.conf.d/*.conf",
    "/usr/lib/systemd/logind.conf.d/*.conf",
)
_GPU = "name,driver_version,vbios_version,clocks.sm,clocks.max.sm,power.draw,temperature.gpu,utilization.gpu,memory.used"
_IMAGE = (
    '{"id":{{json .Id}},"digests":{{json .RepoDigests}},"layers":{{json .RootFS.Layers}},"arch":{{json .Architecture}},'
    '"user":{{json .Config.User}},"env":{{json .Config.Env}}}'
)
_CONTAINER = (
    '{"id":{{json .Id}},"name":{{json .Name}},"state":{{json .State.Status}},"image":{{json .Config.Image}},'
    '"record":{{json (index .Config.Labels "LABEL")}},"restart":{{json .HostConfig.RestartPolicy.Name}},'
    '"gpu":{{json .HostConfig.DeviceRequests}}}'
)
_TOOLS = ("docker", "nvidia-smi", "ip", "rsync", "ib_write_bw")
_ELSEWHERE = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/sbin", "/usr/local/cuda/bin", "/snap/bin", "~/.local/bin")
_DESKTOP = ("Xorg", "Xwayland", "gnome-shell", "gdm-x-session", "gdm-wayland-ses")
_ENGINE = re.compile(r"\bvllm\b|VLLM::|llama[-_]server|sglang|\bollama\b|trtllm|tritonserver")
# What may be shown of a variable: names that steer NCCL and Gloo. Others are not read: they may hold secrets.
_STEERING = re.compile(r"^(NCCL_|GLOO_|TP_SOCKET_|VLLM_HOST_IP|MASTER_ADDR|UCX_NET)")


def text_of(path, limit=65536):
    """The file's text, stripped, or None."""
    try:
        with open(path, errors="replace") as file:
            return file.read(limit).strip()
    except OSError:  # some of sysfs exists and cannot be read: the speed of a link that is down
        return None


def read_files(patterns):
    found = {path: text_of(path) for pattern in patterns for path in glob.iglob(pattern)}
    return {path: text for path, text in found.items() if text is not None}


def read_gids():
    """The GID tables without the empty entries: up to 256 for each port, of which a few are in use."""
    found = {}
    for path in glob.iglob("/sys/class/infiniband/*/ports/*/gids/*"):
        text = text_of(path)
        if text and text.strip("0:"):
            port, index = path.rpartition("/gids/")[::2]
            found |= {path: text, **read_files([f"{port}/gid_attrs/types/{index}", f"{port}/gid_attrs/ndevs/{index}"])}
    return found


def run_one(argv, limit_s=COMMAND_S):
    """{"code", "out", "err"}; code None: not done in time. None: there is no such tool."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=limit_s, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"code": None, "out": "", "err": f"no answer within {limit_s} s"}
    except OSError:
        return None
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr[-2000:]}


def commands(request):
    """Key -> argv of everything that is asked of a tool."""
    login1 = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]
    asked = {
        "addr": ["ip", "-j", "addr"],
        "default": ["ip", "-j", "route", "show", "default"],
        "ibdev2netdev": ["ibdev2netdev"],
        "gpu": ["nvidia-smi", f"--query-gpu={_GPU}", "--format=csv"],
        "gpu-reasons": ["nvidia-smi", "--query-gpu=clocks_event_reasons.active", "--format=csv"],
        "gpu-apps": ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv"],
        "linger": ["loginctl", "show-user", user_name() or str(os.getuid()), "--property=Linger"],
        "remove-ipc": ["busctl", "get-property", *login1, "RemoveIPC"],
        "target": ["systemctl", "get-default"],
        "earlyoom": ["systemctl", "is-active", "earlyoom"],
    }
    asked |= {f"route {peer}": ["ip", "-j", "route", "get", peer] for peer in request["peers"]}
    if shutil.which("docker"):
        asked["docker-info"] = ["docker", "info", "--format", "{{json .}}"]
        if request["image"]:
            asked["image"] = ["docker", "image", "inspect", "--format", _IMAGE, request["image"]]
    return asked


def user_name():
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None


def containers():
    """All containers, one JSON object a line; None without docker."""
    listed = run_one(["docker", "ps", "--all", "--quiet", "--no-trunc"])
    if not listed or listed["code"] != 0 or not listed["out"].strip():
        return listed
    # A container that went meanwhile makes the exit code 1; the others are printed all the same.
    return {**run_one(["docker", "inspect", "--format", _CONTAINER.replace("LABEL", LABEL), *listed["out"].split()]), "code": 0}


def ping(peer):
    """Whether a small and a full-sized packet reach the peer unfragmented: exit codes of ping, None where there is no ping."""
    route = run_one(["ip", "-j", "route", "get", peer])
    device = re.search(r'"dev":"([^"]+)"', route["out"]) if route else None
    mtu = text_of(f"/sys/class/net/{device[1]}/mtu") if device else None
    if not mtu or not shutil.which("ping"):
        return None
    small, full = (run_one(["ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(size), peer], 3) for size in (56, int(mtu) - 28))
    return {"small": small["code"], "full": full["code"], "mtu": int(mtu)}


def knock(peer):
    """How the peer's TCP port 22 answers a connection from here: "open", "refused", or why there was no answer."""
    try:
        socket.create_connection((peer, 22), timeout=1).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return str(error) or type(error).__name__
    return "open"


def mounted(path):
    """Type of the file system that holds `path`, by the longest mount point above it."""
    rows = [line.split() for line in (text_of("/proc/self/mounts", 1 << 20) or "").splitlines()]
    above = [(row[1], row[2]) for row in rows if len(row) > 2 and (path + "/").startswith(row[1].rstrip("/") + "/")]
    return max(above, key=lambda pair: len(pair[0]), default=("", None))[1]


def folder(path):
    """Where a folder really is, whose it is, whether this login may write there, and the space, bytes."""
    at = os.path.realpath(existing(path))
    space, owner = os.statvfs(at), os.stat(at).st_uid
    return {
        "path": path, "exists": os.path.isdir(os.path.expanduser(path)), "real": at, "owner": owner, "writable": os.access(at, os.W_OK),
        "free_bytes": space.f_bavail * space.f_frsize, "type": mounted(at),
    }  # fmt: skip


def model_folder(path):
    """A snapshot as its index describes it: which files it names, which are not there, bytes. Contents are not read."""
    at = os.path.expanduser(path)
    config = os.path.isfile(f"{at}/config.json")
    found = {"path": path, "exists": os.path.isdir(at), "config": config, "index": False, "named": 0, "missing": []}
    sizes = {name: tried(os.path.getsize, f"{at}/{name}") for name in (os.listdir(at) if found["exists"] else [])}
    weights = [name for name in sizes if name.endswith(_WEIGHTS)]  # size None: a link that leads nowhere
    found["empty"] = sorted(name for name, size in sizes.items() if size is None or (size == 0 and name in weights))
    index = text_of(f"{at}/model.safetensors.index.json", 1 << 26)
    if index:
        try:
            named = sorted(set(json.loads(index)["weight_map"].values()))
        except (ValueError, KeyError, AttributeError):
            return {**found, "index": None}
        found |= {"index": True, "named": len(named), "missing": [name for name in named if not sizes.get(name)]}
        found["bytes"] = sum(sizes.get(name) or 0 for name in named)
        return found
    return {**found, "named": len(weights), "bytes": sum(sizes[name] or 0 for name in weights)}


def tried(look, *args):
    """What a look gives, or None where it is refused: another user's folder, a mount whose server is gone."""
    try:
        return look(*args)
    except (OSError, ValueError):  # ValueError: a file that is not what it should be
        return None


def hub_rests(hub):
    """Lock files and unfinished downloads of a Hugging Face cache: path, age in seconds, whether a process holds it."""
    at, now = os.path.expanduser(hub), time.time()
    held = {row.split()[5].rpartition(":")[2] for row in (text_of("/proc/locks", 1 << 20) or "").splitlines() if len(row.split()) > 5}
    found = []
    for pattern in (f"{at}/hub/.locks/**/*.lock", f"{at}/hub/models--*/blobs/*.incomplete"):
        for path in glob.glob(pattern, recursive=True)[:200]:
            state = tried(os.stat, path)
            if state:
                found.append({"path": path, "age_s": now - state.st_mtime, "bytes": state.st_size, "held": str(state.st_ino) in held})
    return found


def process(pid):
    """As describe(), with the container it runs in and its name; without the command line, which may hold a key."""
    inside = re.search(r"[0-9a-f]{64}", text_of(f"/proc/{pid}/cgroup") or "")
    known = {**describe(pid), "name": text_of(f"/proc/{pid}/comm"), "container": inside[0] if inside else None}
    return {key: value for key, value in known.items() if key != "command"}


def processes(gpu_apps):
    """Other inference engines, the desktop, whatever computes on the GPU, and how many zombies there are."""
    on_gpu = {int(word) for word in re.findall(r"^(\d+),", gpu_apps, re.MULTILINE)}
    found, zombies = [], 0
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        fields = stat_fields(pid)
        if fields is None or pid == os.getpid():
            continue
        zombies += fields[0] == "Z"
        name, command = text_of(f"/proc/{pid}/comm") or "", (text_of(f"/proc/{pid}/cmdline") or "").replace("\0", " ")
        kind = "gpu" if pid in on_gpu else "engine" if _ENGINE.search(command) else "desktop" if name in _DESKTOP else None
        if kind and fields[0] != "Z":
            found.append({**process(pid), "kind": kind})
    return {"list": found, "zombies": zombies}


def login():
    """Who we are here, and what this non-login shell has: PATH, tools, variables that steer NCCL."""
    places = [os.path.expanduser(place) for place in _ELSEWHERE]
    elsewhere = {tool: [f"{place}/{tool}" for place in places if os.access(f"{place}/{tool}", os.X_OK)] for tool in _TOOLS}
    groups = run_one(["id", "-nG"])
    return {
        "uid": os.getuid(),
        "user": user_name(),
        "home": os.path.expanduser("~"),
        "groups": groups["out"].split() if groups else [],
        "path": os.environ.get("PATH", ""),
        "tools": {tool: shutil.which(tool) for tool in _TOOLS},
        "elsewhere": elsewhere,
        "steering": {name: value for name, value in os.environ.items() if _STEERING.match(name)},
    }


def facts_collect(request):
    """Everything at once; see the module's docstring. request: peers, image, ports, folders, models, hub, nccl."""
    begin = time.time()
    asked = commands(request)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        running = {key: pool.submit(run_one, argv) for key, argv in asked.items()}
        running["containers"] = pool.submit(containers)
        pings = {peer: pool.submit(ping, peer) for peer in request["peers"]}
        knocks = {peer: pool.submit(knock, peer) for peer in request["peers"]}
        library = pool.submit(nccl, request.get("nccl"))
        files = {**read_files(_FILES), **read_gids()}
        runs = {key: future.result() for key, future in running.items()}
        reach = {peer: {"ping": pings[peer].result(), "tcp": knocks[peer].result()} for peer in request["peers"]}
    node = {
        "login": login(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "wireless": [path.split("/")[4] for path in glob.glob("/sys/class/net/*/wireless") + glob.glob("/sys/class/net/*/phy80211")],
        "hca_netdevs": {path.split("/")[4]: os.listdir(path) for path in glob.glob("/sys/class/infiniband/*/device/net")},
        "reach": reach,
        "ports": {str(port): port_holder(port) for port in request["ports"]},
        "folders": {label: tried(folder, path) for label, path in {**request["folders"], **docker_root(runs)}.items()},
        "models": {label: tried(model_folder, path) for label, path in request["models"].items()},
        "hub_rests": hub_rests(request["hub"]) if request["hub"] else [],
        "processes": processes((runs["gpu-apps"] or {}).get("out", "")),
        "record": tried(read_json, paths(request)[0]),
        "lock": text_of(lock_path()),
        "nccl": library.result(),
    }
    return {"files": files, "runs": runs, "node": node, "clock": {"begin_unix_s": begin, "end_unix_s": time.time()}}


def docker_root(runs):
    """The folder of docker's images as a folder to look at, where docker says it."""
    info = runs.get("docker-info")
    try:
        return {"docker": json.loads(info["out"])["DockerRootDir"]} if info and info["code"] == 0 else {}
    except (ValueError, KeyError):
        return {}


ACTIONS |= {"facts_collect": facts_collect}
