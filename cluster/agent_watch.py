"""The node agent, part for topic "watch": one look at a rank with all that tells work from waiting. Standard library only.

Sent after agent.py and agent_cluster.py in the same program (see agent_client.py), so the names below come from there.
What a look costs: one pass over /proc, and for a container one `docker inspect` and one `docker logs` since the last look.
"""

# mypy: ignore-errors

try:
    from cluster.agent import ACTIONS, kernel_boot_id, notes_path, paths, read_json, write_json
    from cluster.agent_cluster import docker
except ImportError:  # sent as one text: everything is here already
    pass

import calendar
import os
import re
import shutil
import subprocess
import time

_LINES = 1000  # of one look; a rank's whole boot prints about 200
_LINE_CHARS = 500
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TCP = {
    "01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT", "07": "CLOSE",
    "08": "CLOSE_WAIT", "09": "LAST_ACK", "0B": "CLOSING",
}  # fmt: skip


def watch_look(request):
    """The rank as `probe` sees it, and: new log lines since request["cursor"] (None: none), processes, CPU time; with `deep` more."""
    seen = ACTIONS[request["probe"]]({**request, "action": request["probe"], "lines": 0})
    record = seen["record"]
    lines, cursor = new_lines(record, request, bool(seen["pids"])) if record and request["cursor"] is not None else ([], request["cursor"])
    table = processes()
    ours = sorted(family(table, seen["pids"]))
    found = {
        "at_unix_s": time.time(),
        "boot_id": kernel_boot_id(),
        "lines": lines,
        "cursor": cursor,
        "processes": [[pid, table[pid][0], table[pid][1]] for pid in ours if pid in table],
        "cpu_s": sum(table[pid][3] for pid in ours if pid in table),
    }
    return {"probe": seen, "watch": {**found, **(deep(request) if request["deep"] else {})}}


def deep(request):
    """What costs more or changes little: GPU, connections to the other ranks, memory, whether the compile caches are empty."""
    with open("/proc/vmstat") as file:
        counters = dict(line.split() for line in file)
    with open("/proc/meminfo") as file:
        memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    return {
        "gpu": gpu(),
        "peers": {peer: connections(peer) for peer in request["peers"]},
        "memory_available_bytes": memory["MemAvailable"],
        "memory_total_bytes": memory["MemTotal"],
        "oom_kills": int(counters.get("oom_kill", 0)),
        "cold_cache": not any(holds_a_file(folder) for folder in request["folders"]),
    }


def new_lines(record, request, alive):
    """Whole lines since the cursor, as [unix time or None, text], and the next cursor: a byte offset, or docker's last time stamp.

    Of a rank that has ended, the last line counts even where it is cut off.
    """
    if record["log"] == "docker":
        return docker_lines(request["name"], request["cursor"])
    try:
        with open(record["log"], "rb") as file:
            start = int(request["cursor"] or 0)
            file.seek(start)
            data = file.read(_LINES * _LINE_CHARS)
    except OSError:
        return [], request["cursor"]
    whole = data[: data.rfind(b"\n") + 1] if alive else data
    return [[None, text] for text in clean(whole.decode(errors="replace").split("\n"))], str(start + len(whole))


def docker_lines(name, cursor):
    """Docker keeps stdout and stderr apart: the time stamps put their lines in one order."""
    since = ["--since", cursor] if cursor else []
    code, out, err = docker("logs", "--timestamps", "--tail", str(_LINES), *since, name, timeout=20)
    fresh = [(stamp, text) for stamp, text in sorted([*stamped(out), *stamped(err)]) if stamp > cursor] if code == 0 else []
    lines = [[unix_s(stamp), piece] for stamp, text in fresh for piece in clean([text])]
    return lines, fresh[-1][0] if fresh else cursor


def stamped(output):
    """(time stamp, text) of each line of `docker logs --timestamps`. A progress bar's carriage returns have become line ends here."""
    rows = []
    for line in output.splitlines():
        if _STAMP.match(line):
            rows.append(list(line.partition(" ")[::2]))
        elif rows:
            rows[-1][1] += "\r" + line
    return [tuple(row) for row in rows]


def clean(texts):
    """Without colours, empty lines and what a progress bar wrote over (everything before its last carriage return)."""
    last = [_COLOUR.sub("", text).rstrip("\r").rpartition("\r")[2].rstrip()[:_LINE_CHARS] for text in texts]
    return [text for text in last if text]


def unix_s(stamp):
    """`2026-11-29T21:08:01.609012321Z` in seconds since 1970."""
    return calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) + float(
        "0" + stamp[19:].rstrip("Z") if stamp[19:20] == "." else 0
    )


def processes():
    """Every process of the node: pid -> (name, state letter, parent, CPU seconds of itself and the children it waited for)."""
    found, hertz = {}, os.sysconf("SC_CLK_TCK")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                head, _, rest = file.read().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        found[int(pid)] = (head.partition("(")[2], fields[0], int(fields[1]), sum(map(int, fields[11:15])) / hertz)
    return found


def family(table, pids):
    """Those pids and all their descendants. A container's processes descend from its init, which is the pid that docker names."""
    children = {}
    for pid, (_, _, parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, open_ends = set(), list(pids)
    while open_ends:
        pid = open_ends.pop()
        if pid not in found:
            found.add(pid)
            open_ends += children.get(pid, [])
    return found


def gpu():
    """[utilisation %, watts] of every GPU, a figure that the driver does not tell as None; None without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    words = ["nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return [[figure(word) for word in line.split(",")] for line in done.stdout.splitlines()] if done.returncode == 0 else None


def figure(word):
    try:
        return float(word)
    except ValueError:
        return None


def connections(peer):
    """TCP connections of this node with `peer` (an IPv4 address), by state; those of ssh left out."""
    wanted = "".join(f"{int(part):02X}" for part in reversed(peer.split("."))) if peer.count(".") == 3 else "?"
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            address, _, port = row[2].partition(":")
            if address[-8:] == wanted and "0016" not in (port, row[1].rpartition(":")[2]) and row[3] in _TCP:
                found[_TCP[row[3]]] = found.get(_TCP[row[3]], 0) + 1
    return found


def holds_a_file(folder):
    return any(names for _, _, names in os.walk(os.path.expanduser(folder)))


def watch_note(request):
    """Add request["notes"] to what is remembered of the running start, if it still is the start request["boot"]."""
    path = paths(request)[0]
    record = read_json(path)
    if record and record["boot"] == request["boot"]:
        write_json(path, {**record, **request["notes"]})
    else:  # a container
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_json(notes_path(request), {"boot": request["boot"], "notes": request["notes"]})
    return {}


ACTIONS |= {"watch_look": watch_look, "watch_note": watch_note}
