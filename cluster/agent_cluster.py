"""The node agent, second part: the launch lock, the look before a launch, and ranks in containers.

Sent after agent.py in the same program (see agent_client.py), so the names below come from there. Standard library only.
A container is ours only with the label that holds our record: any other of the same name is somebody else's.
"""

try:
    from cluster.agent import ACTIONS, expanded, health, noted, notes_path, paths, port_holder, probe, prune_logs, read_json, stop, tail
except ImportError:  # sent as one text: everything is here already
    pass

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time

LABEL = "spark-lab.record"
SILENT = "docker does not answer: "
NOTHING = {"was_running": False, "left": [], "log": None, "log_lost": False}


def docker(*args, timeout=60, env=None):
    """Run docker; (code, stdout, stderr)."""
    try:
        done = subprocess.run(["docker", *args], capture_output=True, text=True, errors="replace", timeout=timeout, env=env)
    except FileNotFoundError:
        return 127, "", "docker is not installed, or not on the PATH of a non-login shell"
    except subprocess.TimeoutExpired:
        return 124, "", f"docker {args[0]} did not end within {timeout} s"
    return done.returncode, done.stdout, done.stderr.strip()


def lock_path():
    """One file for all users of the node: in /run/lock where everybody may write there, else in /tmp."""
    open_to_all = os.path.isdir("/run/lock") and os.stat("/run/lock").st_mode & 0o002
    return os.path.join("/run/lock" if open_to_all else "/tmp", "spark-lab.lock")


@contextlib.contextmanager
def lock_file():
    """The node's lock file, itself held for the moment of reading and writing it."""
    old = os.umask(0)
    try:
        # O_CREAT only to create: with fs.protected_regular it is refused for another user's file in a sticky folder.
        fd = os.open(lock_path(), os.O_RDWR | (0 if os.path.exists(lock_path()) else os.O_CREAT), 0o666)
    finally:
        os.umask(old)
    with os.fdopen(fd, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def holder_in(file):
    file.seek(0)
    try:
        held = json.loads(file.read())
    except ValueError:
        return None
    return held if held["until_unix_s"] > time.time() else None


def rewrite(file, text):
    file.seek(0)
    file.truncate()
    file.write(text)


def lock(request):
    """Take the node's launch lock for ttl_s, or refresh our own. A lock that was not refreshed in time is stale."""
    with lock_file() as file:
        held = holder_in(file)
        if held and held["token"] != request["token"]:
            return {"held": False, "by": held}
        now = time.time()
        ours = {"token": request["token"], "owner": request["owner"], "since_unix_s": (held or {}).get("since_unix_s", now)}
        rewrite(file, json.dumps({**ours, "until_unix_s": now + request["ttl_s"]}))
        return {"held": True, "by": None}


def unlock(request):
    """Give the lock back if it is ours."""
    with lock_file() as file:
        held = holder_in(file)
        if held and held["token"] == request["token"]:
            rewrite(file, "")
    return {}


def inspect(name):
    """The container's state and our record (None: not ours), or None when there is no such container.

    A docker that does not answer is a failure: nobody knows then whether the container is there.
    """
    code, out, err = docker("container", "inspect", name)
    if code != 0 and "no such container" in err.lower():
        return None
    if code != 0:
        raise SystemExit(f"{SILENT}{err}")
    found = json.loads(out)[0]
    text = (found["Config"].get("Labels") or {}).get(LABEL)
    return {"state": found["State"], "record": json.loads(text) if text else None, "image": found["Config"]["Image"]}


def preflight(request):
    """What can be known on this node before a launch: docker, image, paths, ports, a container of the name."""
    code, out, err = docker("version", "--format", "{{.Server.Version}}", timeout=20) if request["image"] else (0, "", "")
    image = image_facts(request["image"]) if request["image"] and code == 0 else None
    container = inspect(request["name"]) if code == 0 and request["image"] else None
    return {
        "docker_error": (err or out or f"exit {code}") if code != 0 else None,
        "image": image,
        "missing_paths": [path for path in request["paths"] if not os.path.exists(os.path.expanduser(path))],
        "unwritable": [path for path in request["folders"] if not os.access(existing(path), os.W_OK)],
        "ports": {str(port): port_holder(port) for port in request["ports"]},
        "foreign_container": bool(container and container["record"] is None),
        "free": free(request["folders"]),
    }


def image_facts(name):
    """What `docker image inspect` says of the image, or None when there is none of that name."""
    code, out, _ = docker("image", "inspect", name)
    return json.loads(out)[0] if code == 0 else None


def existing(folder):
    """The folder, or the nearest one above it that exists: looking must not make it."""
    at = os.path.expanduser(folder)
    while not os.path.isdir(at):
        at = os.path.dirname(at)
    return at


def free(folders):
    """Free space where each folder is or would be, bytes."""
    found = {folder: os.statvfs(existing(folder)) for folder in folders}
    return {folder: at.f_bavail * at.f_frsize for folder, at in found.items()}


def shared_memory():
    """Names of the files that vLLM leaves in /dev/shm when its container shares the host's IPC."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.mp-")))
    return []


def docker_start(request):
    """docker run with our record as a label. A container of ours that has ended is replaced, after its log was saved."""
    found = inspect(request["name"])
    if found and found["record"] is None:
        raise SystemExit(f"a container named {request['name']} exists that this tool did not make")
    if found and found["state"]["Running"]:
        return {"started": False, "record": found["record"]}
    if found:
        save_log(request, found["record"])
        docker("rm", "--force", request["name"])
    record = {**request["record"], "argv": request["argv"], "started_unix_s": time.time(), "log": "docker", "shm_before": shared_memory()}
    for folder in request["folders"]:
        os.makedirs(os.path.expanduser(folder), exist_ok=True)
    words = expanded(request["argv"][1:])
    label = ["--label", f"{LABEL}={json.dumps(record)}"]
    env = {**os.environ, **request["env"]}
    code, out, err = docker(words[0], *label, *words[1:], timeout=80, env=env)
    if code != 0:
        docker("rm", "--force", request["name"])  # a container that could not start stays behind as "created"
        raise SystemExit(err or out)
    return {"started": True, "record": record}


def docker_probe(request):
    """As probe(), for a container. `problem`: docker itself does not answer, so that nothing is known."""
    found, problem = None, None
    try:
        found = inspect(request["name"])
    except SystemExit as silent:
        problem = str(silent).removeprefix(SILENT)
    record = noted(request, found["record"]) if found else None
    running = bool(record and found["state"]["Running"])
    port = request["port"] or (record or {}).get("port")
    return {
        "record": record,
        "pids": [found["state"]["Pid"]] if running else [],
        "exit_code": None if running or not record else found["state"]["ExitCode"],
        "oom_killed": bool(record and found["state"].get("OOMKilled")),
        "holder": port_holder(port) if port else None,
        "holder_is_ours": running,
        "tail": docker_tail(request["name"], request.get("lines", 12)) if record else [],
        "problem": problem,
        "health": health(record["health_url"]) if running and record["health_url"] else None,
    }


def docker_tail(name, lines):
    if not lines:
        return []
    code, out, err = docker("logs", "--tail", str(lines), name, timeout=20)
    return (out + ("\n" + err if err else "")).splitlines()[-lines:] if code == 0 else []


def save_log(request, record):
    """Keep the container's whole log before it is removed; the newest 10 of this rank stay. None when it cannot be written."""
    folder = os.path.join(os.path.expanduser(request["run_dir"]), "logs")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(record.get("started_unix_s", 0)))
    path = os.path.join(folder, f"{stamp}-{record['boot']}-{request['name']}.log")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path + ".tmp", "wb") as file:
            done = subprocess.run(["docker", "logs", request["name"]], stdout=file, stderr=subprocess.STDOUT, timeout=60, check=False)
        os.replace(path + ".tmp", path)
        prune_logs(folder, request["name"])
    except (OSError, subprocess.TimeoutExpired):  # a full disk must not keep a container from being stopped
        return None
    return path if done.returncode == 0 else None


def docker_stop(request):
    """Save the log, stop with time to end, remove, and verify. Leaves a container that is not ours alone."""
    found = inspect(request["name"])
    if found is None or found["record"] is None:
        return NOTHING
    docker("stop", "--time", str(int(request["grace_s"])), request["name"], timeout=request["grace_s"] + 30)
    log = save_log(request, found["record"])
    docker("rm", "--force", request["name"])
    left = [request["name"]] if inspect(request["name"]) else []
    if not left:
        sweep(found["record"])
        with contextlib.suppress(OSError):
            os.remove(notes_path(request))
    return {"was_running": found["state"]["Running"], "left": left, "log": log, "log_lost": log is None}


def rank_probe(request):
    """The rank, in whichever runtime it was started: the settings may have changed since."""
    if read_json(paths(request)[0]):
        return probe(request)
    if request["runtime"] == "docker":
        return docker_probe(request)
    seen = docker_probe(request) if shutil.which("docker") else None
    return seen if seen and seen["record"] else probe(request)


def rank_stop(request):
    """Stop the rank in both runtimes. Without docker's answer nothing is certain, unless the rank was a process."""
    by_process = stop(request)
    try:
        by_docker = docker_stop(request) if request["runtime"] == "docker" or shutil.which("docker") else NOTHING
    except SystemExit:
        if request["runtime"] == "docker":
            raise
        by_docker = NOTHING
    both = {"was_running": by_process["was_running"] or by_docker["was_running"], "left": [*by_process["left"], *by_docker["left"]]}
    return {**by_docker, **both}


def sweep(record):
    """Remove what the container left in /dev/shm: files that were not there before it and that no process maps."""
    for name in set(shared_memory()) - set(record.get("shm_before", ())):
        path = os.path.join("/dev/shm", name)
        if not in_use(path):
            with contextlib.suppress(OSError):
                os.remove(path)


def in_use(path):
    """Whether any process that we may look at maps `path`."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
            if any(line.rstrip().endswith(path) for line in file):
                return True
    return False


def log(request):
    """Last lines of a rank's log: of the running container or process, else of the newest saved log."""
    if request["runtime"] == "docker":
        found = None
        with contextlib.suppress(SystemExit):  # a saved log needs no docker
            found = inspect(request["name"])
        if found and found["record"]:
            return {"path": f"docker logs {request['name']}", "lines": docker_tail(request["name"], request["lines"])}
    folder = os.path.join(os.path.expanduser(request["run_dir"]), "logs")
    names = sorted(name for name in (os.listdir(folder) if os.path.isdir(folder) else []) if name.endswith(f"-{request['name']}.log"))
    path = os.path.join(folder, names[-1]) if names else None
    return {"path": path, "lines": tail(path, request["lines"]) if path else []}


ACTIONS |= {
    "lock": lock,
    "unlock": unlock,
    "preflight": preflight,
    "docker_start": docker_start,
    "rank_probe": rank_probe,
    "rank_stop": rank_stop,
    "log": log,
}
