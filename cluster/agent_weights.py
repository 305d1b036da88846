"""The node agent's part for weights: what a snapshot on this node holds, hashing it, and taking over copied files.

Sent after agent.py and agent_cluster.py in the same program (see agent_client.py). Standard library only. Nothing is deleted that
was not put there by this tool; what is proven bad is kept beside its successor as `*.bad-STAMP`.
"""

try:
    from cluster.agent import ACTIONS, read_json, write_json
    from cluster.agent_cluster import existing
except ImportError:  # sent as one text: everything is here already
    pass

import concurrent.futures
import contextlib
import hashlib
import json
import os
import re

STAGING = ".spark-lab-sync"  # in the repository's cache folder, so that taking over a file is a rename
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
SMALL_BYTES = 64 << 20  # other files up to this size are read whole at every change; the largest tokenizer has 20 MB
HEADER_LIMIT = 100_000_000  # the format's own limit of a header
CHUNK_BYTES = 8 << 20


class Snapshot:
    """One snapshot folder on this node and what is known of it. A hub cache has blobs beside it, a plain folder has not."""

    def __init__(self, folder, state_dir):
        self.folder = os.path.abspath(os.path.expanduser(folder))
        above = os.path.dirname(self.folder)
        self.in_hub = os.path.basename(above) == "snapshots"
        self.repo = os.path.dirname(above) if self.in_hub else self.folder
        self.staging = os.path.join(self.repo, STAGING, os.path.basename(self.folder))
        name = hashlib.sha256(self.folder.encode()).hexdigest()[:24]
        self.cache_path = os.path.join(os.path.expanduser(state_dir), f"{name}.json")

    def path(self, name):
        return os.path.join(self.folder, name)

    def names(self):
        """All files and links below the folder, sorted; without what this tool keeps there."""
        found = []
        for base, folders, files in os.walk(self.folder):
            folders[:] = [name for name in folders if name != STAGING]
            found += [os.path.relpath(os.path.join(base, name), self.folder) for name in files if not set_aside(name)]
        return sorted(found)

    def blob(self, name):
        """The name in blobs/ that the snapshot's link points to; None for a file that is no such link."""
        with contextlib.suppress(OSError):
            target = os.path.normpath(os.path.join(os.path.dirname(self.path(name)), os.readlink(self.path(name))))
            if self.in_hub and os.path.dirname(target) == os.path.join(self.repo, "blobs"):
                return os.path.basename(target)
        return None

    def remembered(self):
        """What was found out last time: file name -> stat and digests. Empty when that cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return read_json(self.cache_path) or {}
        return {}

    def remember(self, known):
        with contextlib.suppress(OSError):  # a full or read-only home costs time at the next look, nothing else
            os.makedirs(os.path.dirname(self.cache_path), exist_ok=True)
            write_json(self.cache_path, known)


def set_aside(name):
    return re.search(r"\.bad-\d{8}T\d{6}Z", name) is not None


def identity(path):
    """What must be unchanged for a digest to hold: resolved path, size, time of change, inode. Raises OSError."""
    real = os.path.realpath(path)
    seen = os.stat(real)
    return [real, seen.st_size, seen.st_mtime_ns, seen.st_ino]


def problem(path, kind, expected=None, actual=None):
    return {"path": path, "kind": kind, "expected": expected, "actual": actual}


def read_header(path, size):
    """A safetensors file's header without its data: (digest, tensor names, None or what is wrong).

    The file is as long as the header says it must be, or it is short or oversize.
    """
    with open(path, "rb") as file:
        begin = file.read(8)
        length = int.from_bytes(begin, "little")
        if len(begin) < 8 or (length <= HEADER_LIMIT and 8 + length > size):
            return None, (), ("short", 8 + length if len(begin) == 8 else 8, size)
        text = file.read(length) if length <= HEADER_LIMIT else b""
    try:
        tensors = json.loads(text)
        spans = {name: entry["data_offsets"] for name, entry in tensors.items() if name != "__metadata__"}
        expected = 8 + length + max((int(end) for _, end in spans.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, (), ("header", None, size)
    wrong = None if size == expected else ("short" if size < expected else "oversize", expected, size)
    return hashlib.sha256(begin + text).hexdigest(), tuple(spans), wrong


def read_small(path, name, blob):
    """A file that is no tensor file, up to SMALL_BYTES: (sha256, None or what is wrong). `path` may be its blob, `name` is its own."""
    with open(path, "rb") as file:
        content = file.read()
    wrong = None
    if blob and re.fullmatch(r"[0-9a-f]{40}", blob):  # the hub cache names what is not in LFS by its git hash
        found = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        wrong = None if found == blob else ("content", blob, found)
    if name.endswith(("config.json", INDEX)):
        try:
            json.loads(content)
        except ValueError:
            wrong = ("json", None, len(content))
    return hashlib.sha256(content).hexdigest(), wrong


def look_at(snapshot, name, before):
    """One file: stat, digests, tensor names, and what is wrong with it. `before`: what was known of it."""
    try:
        where = identity(snapshot.path(name))
    except OSError:
        return {"where": None, "blob": snapshot.blob(name), "tensors": [], "wrong": ["dangling", None, None]}
    size, blob = where[1], snapshot.blob(name)
    seen = {"where": where, "blob": blob, "size": size, "digest": None, "tensors": [], "wrong": None}
    try:
        if name.endswith(".safetensors"):
            seen["digest"], seen["tensors"], seen["wrong"] = read_header(where[0], size)
        elif size <= SMALL_BYTES:
            seen["digest"], seen["wrong"] = read_small(where[0], name, blob)
    except OSError as error:
        seen["wrong"] = ("unreadable", None, error.strerror)
    same = before and before.get("where") == where
    return {**seen, "sha256": before.get("sha256") if same else None}


def index_problems(snapshot, seen):
    """What the index lists and is not there, file by file and tensor by tensor."""
    if INDEX not in seen:
        any_weights = any(name.endswith(".safetensors") for name in seen)
        return [] if any_weights else [problem("model.safetensors", "missing")]
    try:
        with open(snapshot.path(INDEX), "rb") as file:
            listed = json.load(file)["weight_map"]
        wanted = {}
        for tensor, name in listed.items():
            wanted.setdefault(name, set()).add(tensor)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [problem(INDEX, "index")]
    outside = [name for name in wanted if os.path.isabs(name) or ".." in name.split("/")]
    if outside:
        return [problem(INDEX, "index", None, outside[0])]
    missing = [problem(name, "missing") for name in sorted(wanted) if name not in seen]
    for name in sorted(set(wanted) & set(seen)):
        lost = wanted[name] - set(seen[name]["tensors"])
        if lost and not seen[name]["wrong"]:
            missing.append(problem(name, "tensors", len(wanted[name]), f"{len(lost)} missing, such as {min(lost)}"))
    return missing


def required_problems(seen, needs_tokenizer):
    found = [] if "config.json" in seen else [problem("config.json", "missing")]
    if needs_tokenizer and not any(name in seen for name in TOKENIZERS):
        found.append(problem("tokenizer.json", "missing"))
    return found


def examine(snapshot, needs_tokenizer):
    """Files and problems of a snapshot. When nothing changed since the last look, no file is opened."""
    names, before = snapshot.names(), snapshot.remembered()
    known = before.get("files", {})
    print_now = {}
    for name in names:
        with contextlib.suppress(OSError):
            print_now[name] = [*identity(snapshot.path(name)), snapshot.blob(name)]
    key = [needs_tokenizer, names, print_now]
    if before.get("key") == key:
        return known, before["problems"]
    seen = {name: look_at(snapshot, name, known.get(name)) for name in names}
    problems = [problem(name, *each["wrong"]) for name, each in seen.items() if each["wrong"]]
    problems += index_problems(snapshot, seen) + required_problems(seen, needs_tokenizer)
    for each in seen.values():
        each["tensors"] = len(each["tensors"])
    snapshot.remember({"folder": snapshot.folder, "key": key, "files": seen, "problems": problems})
    return seen, problems


def leftovers(snapshot):
    """Unfinished files of cut downloads and copies, with their bytes; and what was set aside."""
    folders = [os.path.join(snapshot.repo, "blobs")] if snapshot.in_hub else []
    found = []
    for folder in [*folders, snapshot.folder]:
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
            if name.endswith(".incomplete") or set_aside(name):
                path = os.path.join(folder, name)
                found.append({"path": path, "bytes": os.lstat(path).st_size})
    return found


def mounted(path):
    """The mount that holds `path`: point, type, source, options of the mount and of its file system."""
    best = {"point": "", "type": "", "source": "", "options": []}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            point, kind = left.split()[4].replace("\\040", " "), right.split()
            if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best["point"]):
                options = left.split()[5].split(",") + (kind[2].split(",") if len(kind) > 2 else [])
                best = {"point": point, "type": kind[0], "source": kind[1], "options": options}
    return best


def scan_one(wanted, state_dir):
    snapshot = Snapshot(wanted["folder"], state_dir)
    seen, problems = examine(snapshot, wanted["tokenizer"]) if os.path.isdir(snapshot.folder) else ({}, [])
    siblings = os.path.dirname(snapshot.folder) if snapshot.in_hub else None
    names = sorted(os.listdir(siblings)) if siblings and os.path.isdir(siblings) else []
    kept = ("size", "blob", "digest", "sha256", "where")
    return {
        "folder": snapshot.folder,
        "exists": os.path.isdir(snapshot.folder),
        "files": {name: {key: each.get(key) for key in kept} for name, each in seen.items() if each["where"]},
        "problems": problems,
        "others": [name for name in names if name != os.path.basename(snapshot.folder)],
        "leftovers": leftovers(snapshot),
        "mount": mounted(os.path.realpath(existing(snapshot.repo))),
    }


def weights_scan(request):
    """What each wanted snapshot holds here, by names, sizes and headers; nothing is changed but this tool's own memory."""
    found = [scan_one(wanted, request["state_dir"]) for wanted in request["snapshots"]]
    return {"snapshots": found}


def sha256_of(path):
    """The file's sha256. Its pages are dropped again: on unified memory the page cache is what the model needs."""
    digest, buffer = hashlib.sha256(), bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        at = 0
        while count := file.readinto(buffer):
            digest.update(view[:count])
            os.posix_fadvise(file.fileno(), at, count, os.POSIX_FADV_DONTNEED)
            at += count
    return digest.hexdigest()


def on_all_cores(function, items):
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


def weights_hash(request):
    """sha256 of some files of a snapshot, on all cores, and remembered for the next scan. None: it cannot be read."""
    snapshot = Snapshot(request["folder"], request["state_dir"])

    def one(name):
        with contextlib.suppress(OSError):
            before = identity(snapshot.path(name))
            found = sha256_of(before[0])
            if identity(snapshot.path(name)) == before:  # not changed while it was read
                return name, found, before
        return name, None, None

    done = on_all_cores(one, request["files"])
    known = snapshot.remembered()
    for name, found, where in done:
        entry = known.get("files", {}).get(name)
        if entry and entry["where"] == where:
            entry["sha256"] = found
    snapshot.remember(known)
    return {"sha256": {name: found for name, found, _ in done}}


ACTIONS |= {"weights_scan": weights_scan, "weights_hash": weights_hash}
