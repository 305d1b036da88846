"""The node agent, part for NCCL: which library a rank on this node would load, by its content.

Sent with agent_facts.py in the same program. Standard library only. No container is started: a file is read out of an image through
a container that is made, never run, and removed again.
"""

# mypy: ignore-errors

import glob
import hashlib
import os
import re
import subprocess
import tarfile
import threading
import time

_REMOVE_S = 10
_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+[^\s\0]*)")
_CHUNK, _OVERLAP = 4 << 20, 256  # bytes; what is searched for is shorter than the overlap
_NO_ENGINE = ["--pull=never", "--network=none", "--label=spark-lab.look=nccl"]


def digest(file, marks):
    """sha256, size in bytes, NCCL's own version text and which of `marks` (words in the library) it holds, in one pass."""
    hashed, size, version, found, rest = hashlib.sha256(), 0, None, set(), b""
    while chunk := file.read(_CHUNK):
        hashed.update(chunk)
        size += len(chunk)
        text = rest + chunk
        version = version or _VERSION.search(text)
        found |= {mark for mark in marks if mark not in found and mark.encode() in text}
        rest = text[-_OVERLAP:]
    told = version[1].decode(errors="replace") if version else None
    return {"sha256": hashed.hexdigest(), "bytes": size, "version": told, "marks": sorted(found)}


def on_disk(path, marks):
    """The library at a path of this node, or {"path", "problem"}."""
    at = os.path.realpath(os.path.expanduser(path))
    try:
        with open(at, "rb") as file:
            return {"path": path, **digest(file, marks)}
    except OSError as error:
        return {"path": path, "problem": error.strerror or str(error)}


def docker_says(words, limit_s):
    """What docker prints; None when it fails. Raises TimeoutExpired."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, errors="replace", timeout=max(0.1, limit_s))
    return done.stdout.strip() if done.returncode == 0 else None


def copied(container, path, marks, limit_s):
    """The library at a path in a container that never ran; None when there is none. Raises TimeoutExpired."""
    words, late = ["docker", "cp", "-L", f"{container}:{path}", "-"], threading.Event()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as docker:
        timer = threading.Timer(max(0.1, limit_s), lambda: (late.set(), docker.kill()))
        timer.start()
        try:
            with tarfile.open(fileobj=docker.stdout, mode="r|") as tar:
                member = tar.next()
                found = {"path": path, **digest(tar.extractfile(member), marks)} if member and member.isreg() else None
        except (tarfile.TarError, OSError):  # no such file: docker printed nothing
            found = None
        finally:
            timer.cancel()
            docker.kill()
    if late.is_set():
        raise subprocess.TimeoutExpired(words, limit_s)
    return found


def in_image(image, paths, marks, known, limit_s):
    """{"image": id, "libraries": those found}; libraries None: the asker knows this image already, or docker does not answer."""
    stop = time.monotonic() + limit_s
    identity = docker_says(["image", "inspect", "--format", "{{.Id}}", image], limit_s)
    if identity is None or identity in known:
        return {"image": identity, "libraries": None}
    container = docker_says(["create", *_NO_ENGINE, image, "true"], stop - time.monotonic())
    if container is None:
        return {"image": identity, "libraries": None, "problem": f"docker create {image} failed"}
    try:
        found = [copied(container, path, marks, stop - time.monotonic()) for path in paths]
    finally:
        docker_says(["rm", "--force", container], _REMOVE_S)
    return {"image": identity, "libraries": [each for each in found if each]}


def nccl(wanted):
    """The libraries as `wanted` asks; None: not asked.

    wanted: image, paths (without an image: patterns on the node), known, host, marks, limit_s (for all that is read out of the image).
    """
    if not wanted:
        return None
    marks, paths = wanted["marks"], [path.replace("MACHINE", os.uname().machine) for path in wanted["paths"]]
    try:
        if wanted["image"]:
            found = in_image(wanted["image"], paths, marks, wanted["known"], wanted["limit_s"])
        else:
            here = [path for pattern in paths for path in sorted(glob.glob(os.path.expanduser(pattern)))]
            found = {"image": None, "libraries": [on_disk(path, marks) for path in here]}
    except subprocess.TimeoutExpired:
        found = {"image": None, "libraries": None, "problem": f"reading it out of the image took longer than {wanted['limit_s']} s"}
    except OSError as error:
        found = {"image": None, "libraries": None, "problem": f"docker cannot be called ({type(error).__name__})"}
    return {**found, "host": on_disk(wanted["host"], marks) if wanted["host"] else None}
