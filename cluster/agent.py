"""The node agent: starts, probes and stops one engine process on the node it runs on. Standard library only, Linux.

It is sent as a program on stdin to the node's own `python3 -` (cluster/transport.py adds the request as the last line), so
nothing is installed on a node and no secret stands in an argument list. Each call prints one JSON object.

A started process is described by a record file `<run_dir>/<name>.json`. It is *ours* only while the kernel's boot id, the pid
and the pid's start time all match the record: a reused pid is somebody else's process and is never signalled.
"""

import contextlib
import glob
import json
import os
import pwd
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

# The shell is the session's leader and outlives the engine just long enough to note how it ended. It waits for a word on stdin
# first: when this program is interrupted before the record is written, the shell reads the pipe's end and nothing was started.
KEPT_LOGS = 10
_LEADER = 'read -r go || exit 125; exec </dev/null; "$@"; code=$?; echo $code > "$SPARK_LAB_EXIT_FILE"; exit $code'


def kernel_boot_id():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def stat_fields(pid):
    """The fields of /proc/PID/stat from the state (index 0) on, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def start_ticks(pid):
    """When `pid` started, in clock ticks since boot, or None when it is gone or a zombie."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


def session_members(sid):
    """The pids of all living processes whose session is `sid`."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    fields = {pid: stat_fields(pid) for pid in pids}
    return [pid for pid, f in fields.items() if f and f[0] != "Z" and int(f[3]) == sid]


def read_json(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def write_json(path, value):
    """Write by a temporary file and rename: a reader sees the old file or the new one, never half of one."""
    with open(path + ".tmp", "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def alive(record):
    """The living pids of the record's session, but only if they are provably the ones we started."""
    if record["kernel_boot_id"] != kernel_boot_id():
        return []
    ticks = start_ticks(record["pid"])
    if ticks is not None and ticks != record["start_ticks"]:
        return []  # the pid was given to another process
    members = session_members(record["pid"])
    # A session id cannot be reused while members live; they started after the leader did.
    return [pid for pid in members if (start_ticks(pid) or 0) >= record["start_ticks"]]


def listener_inodes(port):
    """Socket inodes that listen on TCP `port`, any address, IPv4 and IPv6."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        found |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return found


def links_to(fd, targets):
    try:
        return os.readlink(fd) in targets
    except OSError:
        return False


def describe(pid):
    """pid, session, user and command line of a process, as far as this user may see them."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return {"pid": pid, "sid": None, "user": None, "command": None}
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return {"pid": pid, "sid": int((stat_fields(pid) or [0] * 4)[3]), "user": user, "command": command[:300]}


def port_holder(port):
    """Who listens on `port`: None when nobody does; pid None when the holder belongs to a user we may not look at."""
    inodes = listener_inodes(port)
    if not inodes:
        return None
    targets = {f"socket:[{inode}]" for inode in inodes}
    for fd in glob.iglob("/proc/[0-9]*/fd/*"):
        if links_to(fd, targets):
            return describe(int(fd.split("/")[2]))
    return {"pid": None, "sid": None, "user": None, "command": None}


def health(url):
    """The HTTP status of a /health on this node, 0 when nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def tail(path, lines):
    """The last `lines` lines of a log, from at most its last 256 KiB."""
    if not lines:
        return []
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 262144))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def expanded(words):
    """Words with a leading ~/ replaced by this node's home (also in `~/source:/target` of a mount)."""
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in words]


def prune_logs(folder, name):
    """Keep the newest KEPT_LOGS logs of a rank; their names start with the time."""
    for old in sorted(file for file in os.listdir(folder) if file.endswith(f"-{name}.log"))[:-KEPT_LOGS]:
        os.remove(os.path.join(folder, old))


def paths(request):
    base = os.path.join(os.path.expanduser(request["run_dir"]), request["name"])
    return base + ".json", base + ".exit"


def notes_path(request):
    """What was learnt of a container's start after it: its labels, which hold the record, cannot be changed."""
    return os.path.join(os.path.expanduser(request["run_dir"]), f"notes-{request['name']}.json")


def noted(request, record):
    """The record with the notes on this very start."""
    notes = read_json(notes_path(request)) if record else None
    return {**record, **notes["notes"]} if notes and notes["boot"] == record["boot"] else record


def start(request):
    """Start request["argv"] in its own session. Refuses when ours is already alive. Returns the new record."""
    record_path, exit_path = paths(request)
    logs = os.path.join(os.path.dirname(record_path), "logs")
    os.makedirs(logs, exist_ok=True)
    record = read_json(record_path)
    if record and alive(record):
        return {"started": False, "record": record}
    for folder in request.get("folders", ()):
        os.makedirs(os.path.expanduser(folder), exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    log_path = os.path.join(logs, f"{stamp}-{request['record']['boot']}-{request['name']}.log")
    if os.path.exists(exit_path):
        os.remove(exit_path)
    given = dict(zip(request["env"], expanded(request["env"].values()), strict=True))
    env = {**os.environ, **given, "SPARK_LAB_EXIT_FILE": exit_path}
    with open(log_path, "ab") as log:
        leader = subprocess.Popen(
            ["/bin/sh", "-c", _LEADER, "sh", *expanded(request["argv"])],
            env=env, cwd=os.path.expanduser(request["cwd"]), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    identity = {"pid": leader.pid, "start_ticks": start_ticks(leader.pid), "kernel_boot_id": kernel_boot_id()}
    record = {**request["record"], **identity, "argv": request["argv"], "log": log_path, "started_unix_s": time.time()}
    write_json(record_path, record)
    with leader.stdin:
        leader.stdin.write(b"go\n")
    prune_logs(logs, request["name"])
    return {"started": True, "record": record}


def probe(request):
    """The record (None: nothing started or stopped in order), its living pids, its exit code, and who holds the port."""
    record_path, exit_path = paths(request)
    record = read_json(record_path)
    pids = alive(record) if record else []
    holder = port_holder(request["port"] or (record or {}).get("port") or 0)
    exit_code = None
    if record and not pids and os.path.exists(exit_path):
        with open(exit_path) as file:
            exit_code = int(file.read() or -1)
    lines = tail(record["log"], request.get("lines", 12)) if record else []
    ours = bool(holder and holder["sid"] is not None and pids and holder["sid"] == record["pid"])
    seen = {"record": record, "pids": pids, "exit_code": exit_code, "holder": holder, "holder_is_ours": ours, "tail": lines}
    return {**seen, "oom_killed": False, "problem": None, "health": health(record["health_url"]) if pids and record["health_url"] else None}


def stop(request):
    """End the recorded session: TERM, then KILL after grace_s. Removes the record only when nothing of it is left."""
    record_path, exit_path = paths(request)
    record = read_json(record_path)
    if record is None:
        return {"was_running": False, "left": []}
    was = alive(record)
    left = end(record, signal.SIGTERM, request["grace_s"])
    if left:
        left = end(record, signal.SIGKILL, 10)
    if not left:
        for path in (record_path, exit_path):
            if os.path.exists(path):
                os.remove(path)
    return {"was_running": bool(was), "left": left}


def end(record, sig, wait_s):
    """Send `sig` to every living process of the record's session and wait. Returns the pids still there."""
    for pid in alive(record):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sig)
    deadline = time.monotonic() + wait_s
    while alive(record) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(record)


ACTIONS = {"start": start, "probe": probe, "stop": stop}


def main(request):
    """Answer one request on stdout. An expected failure is a SystemExit whose text goes to stderr, with exit code 1."""
    try:
        answer = ACTIONS[request["action"]](request)
    except OSError as error:  # a full disk, a folder of another user: the text names the path
        raise SystemExit(str(error)) from None
    json.dump(answer, sys.stdout)
    return 0
