"""The node agent's part for copies: rsync streams on the head, room and takeover on a worker.

Sent after agent.py, agent_cluster.py and agent_weights.py in the same program. Standard library only. A file is copied into a folder
of this tool's own; it gets its final name, by a rename, only when its content has been checked there.
"""

# mypy: ignore-errors

try:
    from cluster.agent import ACTIONS, alive, read_json, start, stop, tail
    from cluster.agent_cluster import existing
    from cluster.agent_weights import STAGING, Snapshot, identity, on_all_cores, read_header, read_small, sha256_of
except ImportError:  # sent as one text: everything is here already
    pass

import contextlib
import os
import shutil
import time


def content(path, wanted, with_hash):
    """What is wrong with a file that should be `wanted` (size, digest, sha256): kind, expected, actual; None: nothing."""
    try:
        size = identity(path)[1]
        if size != wanted["size"]:
            return ["short" if size < wanted["size"] else "oversize", wanted["size"], size]
        if wanted["path"].endswith(".safetensors"):
            digest, _, wrong = read_header(path, size)
        elif wanted["digest"]:
            digest, wrong = read_small(path, wanted["path"], None)
        else:
            digest, wrong = None, None
        if wrong or digest != wanted["digest"]:
            return ["header", wanted["digest"], digest]
        if with_hash and wanted["sha256"] and (found := sha256_of(path)) != wanted["sha256"]:
            return ["content", wanted["sha256"], found]
    except OSError as error:
        return ["unreadable", None, error.strerror]
    return None


def final_path(snapshot, wanted):
    """Where the content belongs: the blob that the link points to, or the name itself in a plain folder."""
    in_blobs = snapshot.in_hub and wanted["blob"]
    return os.path.join(snapshot.repo, "blobs", wanted["blob"]) if in_blobs else snapshot.path(wanted["path"])


def put_aside(path):
    """Rename a bad file, never over another; its new name, or None when there was nothing."""
    if not os.path.lexists(path):
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (f"{path}.bad-{stamp}" + (f"-{n}" if n else "") for n in range(1000))
    aside = next(name for name in names if not os.path.lexists(name))
    os.rename(path, aside)
    return aside


def make_link(snapshot, wanted, final):
    """The snapshot's link to its blob, by temporary name and rename. What file stood there is put aside; its new name or None."""
    link = snapshot.path(wanted["path"])
    if link == final:
        return None
    os.makedirs(os.path.dirname(link), exist_ok=True)
    target = os.path.relpath(final, os.path.dirname(link))
    if os.path.islink(link) and os.readlink(link) == target:
        return None
    aside = None if os.path.islink(link) else put_aside(link)
    new = f"{link}.{STAGING}"
    with contextlib.suppress(FileNotFoundError):
        os.remove(new)
    os.symlink(target, new)
    os.replace(new, link)
    return aside


def already_there(snapshot, wanted, with_hash):
    """Whether the right blob lies there under its name, so that only the link is missing; the link is made."""
    final = final_path(snapshot, wanted)
    if final == snapshot.path(wanted["path"]) or content(final, wanted, with_hash or wanted["suspect"]):
        return False
    make_link(snapshot, wanted, final)
    return True


def staged_bytes(snapshot, wanted):
    """How much of a file an earlier, cut copy has left; a leftover that cannot be its beginning is removed (it is ours)."""
    path = os.path.join(snapshot.staging, wanted["path"])
    with contextlib.suppress(FileNotFoundError):
        size = os.lstat(path).st_size
        if size <= wanted["size"]:
            return size
        os.remove(path)
    return 0


def sync_prepare(request):
    """Make room for wanted files on a worker; links that only need to be made are made.

    Returns the folder to copy into, the names that still need their content, and what of them is there already in bytes.
    """
    snapshot = Snapshot(request["folder"], request["state_dir"])
    try:
        os.makedirs(snapshot.staging, exist_ok=True)
        linked = [w["path"] for w in request["files"] if already_there(snapshot, w, request["with_hash"])]
    except OSError as error:
        owner = existing(snapshot.repo)
        raise SystemExit(f"cannot write to {owner} ({error.strerror}); it belongs to uid {os.stat(owner).st_uid}") from None
    left = list({final_path(snapshot, w): w for w in request["files"] if w["path"] not in linked}.values())  # a blob is copied once
    there = {wanted["path"]: staged_bytes(snapshot, wanted) for wanted in left}
    space = os.statvfs(snapshot.staging)
    need = sum(wanted["size"] for wanted in left) - sum(there.values())
    if not left:
        tidy(snapshot)
    return {
        "staging": snapshot.staging,
        "copy": [wanted["path"] for wanted in left],
        "there": there,
        "linked": linked,
        "need_bytes": need,
        "free_bytes": space.f_bavail * space.f_frsize,
        "rsync": shutil.which("rsync"),
    }


def tidy(snapshot):
    """Remove the folders of a finished copy, as far as they are empty."""
    for base, _, _ in os.walk(snapshot.staging, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(base)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(snapshot.staging))


def settle(path):
    """Bring a file's bytes to the disk: after a power cut no half file may stand under its final name."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def take_over(snapshot, wanted, with_hash):
    """Check one copied file and give it its final name: {"path", "wrong", "aside"}."""
    staged, final = os.path.join(snapshot.staging, wanted["path"]), final_path(snapshot, wanted)
    wrong = content(staged, wanted, with_hash)
    if wrong:
        if wrong[0] not in ("short", "unreadable"):  # not the beginning of the right file: the next copy must not build on it
            os.remove(staged)
        return {"path": wanted["path"], "wrong": wrong, "aside": []}
    settle(staged)
    os.makedirs(os.path.dirname(final), exist_ok=True)
    aside = []
    if os.path.lexists(final) and content(final, wanted, True) is None:
        os.remove(staged)  # somebody else brought the same file meanwhile
    else:
        aside.append(put_aside(final))
        os.replace(staged, final)
    aside.append(make_link(snapshot, wanted, final))
    return {"path": wanted["path"], "wrong": None, "aside": [name for name in aside if name]}


def sync_adopt(request):
    """Check copied files on all cores and put them in place."""
    snapshot = Snapshot(request["folder"], request["state_dir"])
    try:
        done = on_all_cores(lambda wanted: take_over(snapshot, wanted, request["with_hash"]), request["files"])
        for wanted in request["links"]:  # further names of a blob that has arrived
            already_there(snapshot, wanted, request["with_hash"])
    except OSError as error:
        raise SystemExit(f"cannot put the files in place: {error}") from None
    tidy(snapshot)
    return {"files": done}


def list_path(request, name):
    return os.path.join(os.path.expanduser(request["run_dir"]), f"{name}.files")


def sync_push(request):
    """Start rsync streams on the head, each as a session of its own that is recorded as a rank is."""
    if shutil.which("rsync") is None:
        raise SystemExit("there is no rsync: sudo apt install rsync")
    os.makedirs(os.path.expanduser(request["run_dir"]), exist_ok=True)
    for stream in request["streams"]:
        one = {"name": stream["name"], "run_dir": request["run_dir"]}
        stop({**one, "grace_s": 5})  # of a launcher that was killed
        with open(list_path(request, stream["name"]), "w") as file:
            file.writelines(f"{name}\0" for name in stream["files"])
        argv = [word if word != "FILES" else list_path(request, stream["name"]) for word in stream["argv"]]
        record = {"boot": request["boot"], "port": None, "health_url": None}
        start({**one, "argv": argv, "env": {"LC_ALL": "C"}, "cwd": "~", "record": record})
    return {}


def sync_look(request):
    """How far each stream is: lives, exit code (None: it lives, or was killed), last lines."""
    found = {}
    for name in request["names"]:
        base = os.path.join(os.path.expanduser(request["run_dir"]), name)
        record = read_json(f"{base}.json")
        lives = bool(record and alive(record))
        code = None
        if not lives and os.path.exists(f"{base}.exit"):
            with open(f"{base}.exit") as file:
                code = int(file.read() or -1)
        found[name] = {"lives": lives, "code": code, "tail": tail(record["log"], 30) if record else []}
    return {"streams": found}


def sync_stop(request):
    """End the streams and forget them; what they copied so far stays for the next time."""
    for name in request["names"]:
        stop({"name": name, "run_dir": request["run_dir"], "grace_s": 5})
        with contextlib.suppress(FileNotFoundError):
            os.remove(list_path(request, name))
    return {}


ACTIONS |= {
    "sync_prepare": sync_prepare,
    "sync_adopt": sync_adopt,
    "sync_push": sync_push,
    "sync_look": sync_look,
    "sync_stop": sync_stop,
}
