"""The node agent's part for images: look, pull, build, load, adopt, use a registry. Standard library only, Linux.

Sent after agent_cluster.py in the same program for actions that begin with `images_` (see agent_client.py). A long command runs
in a session of its own, whose record is the request's status file: `images_watch` reads it, `images_cancel` ends that session.
"""

try:
    from cluster.agent import ACTIONS, alive, end, expanded, kernel_boot_id, prune_logs, read_json, start_ticks, tail, write_json
    from cluster.agent_cluster import SILENT, docker, image_facts
except ImportError:  # sent as one text: everything is here already
    pass

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import tarfile
import tempfile

# looking


def server_answers():
    """Raises SystemExit when docker does not answer."""
    code, out, err = docker("version", "--format", "{{.Server.Version}}", timeout=20)
    if code != 0:
        raise SystemExit(f"{SILENT}{err or out}")


def images_look(request):
    """The inspect text of each of request["images"] (None: no such image), and what a pull or ship needs to know."""
    server_answers()
    return {"images": {name: image_facts(name) for name in request["images"]}, "logged_in": stored_logins(), "free_bytes": docker_free()}


def stored_logins():
    """Registries for which docker's client has credentials; the credentials themselves are not read."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        found = read_json(os.path.join(folder, "config.json")) or {}
    except (OSError, ValueError):
        return []
    return sorted({*found.get("auths", {}), *found.get("credHelpers", {})})


def docker_free():
    """Free bytes where docker keeps images; None when that folder is not on this machine or cannot be seen."""
    code, out, _ = docker("info", "--format", "{{.DockerRootDir}}", timeout=20)
    with contextlib.suppress(OSError):
        if code == 0:
            at = os.statvfs(out.strip())
            return at.f_bavail * at.f_frsize
    return None


def same_digest(digest):
    """The id of a local image that came from a registry with this digest under any name, or None."""
    code, out, _ = docker("image", "ls", "--digests", "--no-trunc", "--format", "{{.Digest}} {{.ID}}")
    rows = [line.split() for line in out.splitlines()] if code == 0 else []
    return next((row[1] for row in rows if row[0] == digest), None)


# long commands


def begin(request, argv, **options):
    """Start argv in its own session and remember it in the status file."""
    path = os.path.expanduser(request["status"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    process = subprocess.Popen(argv, start_new_session=True, **options)
    with ended_with_us(process):
        note = {"pid": process.pid, "start_ticks": start_ticks(process.pid), "kernel_boot_id": kernel_boot_id(), "bytes": 0}
        write_json(path, note)
    return process, note


@contextlib.contextmanager
def ended_with_us(process):
    """A terminal's Ctrl-C reaches this program, and not the session of the command: end that too."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        raise


def logged(request, argv, given=None, env=None):
    """Run argv with both its outputs in the request's log; (exit code, the log's last lines). `given`: bytes for its stdin."""
    path = os.path.expanduser(request["log"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as log, tempfile.TemporaryFile() as stdin:
        stdin.write(given or b"")
        stdin.seek(0)
        process, _ = begin(request, argv, stdin=stdin, stdout=log, stderr=log, env=env)
        try:
            with ended_with_us(process):
                code = process.wait()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.expanduser(request["status"]))
    folder, file = os.path.split(path)
    prune_logs(folder, file.partition("-")[2].removesuffix(".log"))
    return code, tail(path, 12)


def images_watch(request):
    """How far a long command is: bytes sent, and the last line of its log."""
    note = read_json(os.path.expanduser(request["status"]))
    lines = tail(os.path.expanduser(request["log"]), 1)
    return {"running": bool(note and alive(note)), "bytes": note["bytes"] if note else 0, "line": lines[0] if lines else ""}


def images_cancel(request):
    """End the session of a long command, if it still runs."""
    note = read_json(os.path.expanduser(request["status"]))
    left = (end(note, signal.SIGTERM, 5) and end(note, signal.SIGKILL, 5)) if note else []
    return {"left": left}


# pull, build, load


def images_pull(request):
    """docker pull, then the name request["tag"] for it. A failure is an answer: {"code", "lines"}, to be explained.

    Without a network a pull by digest is satisfied by an image that came with the same digest under another name.
    """
    code, lines = logged(request, ["docker", "pull", request["image"]])
    found = image_facts(request["image"]) if code == 0 else None
    if code != 0 and "@" in request["image"]:
        mirrored = same_digest(request["image"].partition("@")[2])
        found = image_facts(mirrored) if mirrored else None
    if found and request["tag"] != request["image"]:
        retag(found["Id"], request["tag"])
    return {"code": code, "lines": lines, "image": found, "logged_in": stored_logins()}


def retag(name, tag):
    code, out, err = docker("tag", name, tag)
    if code != 0:
        raise SystemExit(f"docker tag {name} {tag}: {err or out}")


def images_build(request):
    """docker build of the tar in request["context"] (base64) under a name of its own; then the name request["tag"].

    The former image of that name keeps existing, without a name. A failed build changes no name.
    """
    words = [f"--label={name}={value}" for name, value in request["labels"].items()]
    words += [f"--build-arg={name}={value}" for name, value in request["args"].items()]
    code, lines = logged(request, ["docker", "build", "--tag", request["own"], *words, "-"], base64.b64decode(request["context"]))
    found = image_facts(request["own"]) if code == 0 else None
    if found:
        retag(request["own"], request["tag"])
        docker("rmi", request["own"])  # the name; the image has the other one
        found = image_facts(request["tag"])
    return {"code": code, "lines": lines, "image": found}


def images_archive(request):
    """What a docker archive holds, read without loading it: the names and layers of its images."""
    path = os.path.expanduser(request["archive"])
    try:
        with tarfile.open(path) as tar:
            manifest = json.load(tar.extractfile("manifest.json"))
            each = [(entry.get("RepoTags") or [], json.load(tar.extractfile(entry["Config"]))) for entry in manifest]
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise SystemExit(f"{path} is no archive of `docker save`: {error or type(error).__name__}") from None
    return {"images": [{"names": names, "layers": config["rootfs"]["diff_ids"]} for names, config in each]}


def images_load(request):
    """docker load of an archive on this node; the one image with request["layers"] gets the name request["tag"]."""
    server_answers()
    code, lines = logged(request, ["docker", "load", "--input", os.path.expanduser(request["archive"])])
    if code != 0:
        return {"code": code, "lines": lines, "image": None}
    loaded = re.findall(r"^Loaded image(?: ID)?: (\S+)$", "\n".join(lines), re.MULTILINE)
    found = next((each for each in map(image_facts, loaded) if each and each["RootFS"]["Layers"] == request["layers"]), None)
    if found is None:
        raise SystemExit(f"docker loaded {', '.join(loaded) or 'nothing'}, and none of it has the layers the archive promised")
    retag(found["Id"], request["tag"])
    return {"code": 0, "lines": lines, "image": image_facts(request["tag"])}


# on the workers


def images_adopt(request):
    """Give the image that arrived as request["own"] the name request["tag"], if its layers are the wanted ones.

    Answers {"image": None} when nothing arrived. The former image of that name keeps existing, without a name.
    """
    found = image_facts(request["own"])
    if found is None:
        return {"image": None}
    if found["RootFS"]["Layers"] != request["layers"]:
        docker("rmi", request["own"])
        raise SystemExit(f"what arrived as {request['own']} has other layers than the head's image")
    retag(request["own"], request["tag"])
    docker("rmi", request["own"])  # the name; the image has the other one
    return {"image": image_facts(request["tag"])}


def images_push(request):
    """Push request["image"] to the registry as request["own"]; the digest it has there."""
    retag(request["image"], request["own"])
    try:
        code, lines = logged(request, ["docker", "push", request["own"]])
    finally:
        docker("rmi", request["own"])
    digests = re.findall(r"digest: (sha256:[0-9a-f]{64})", "\n".join(lines))
    return {"code": code if digests else code or 1, "lines": lines, "digest": digests[-1] if digests else None}


def images_fetch(request):
    """Pull request["reference"] (by digest), and adopt it as images_adopt does."""
    code, lines = logged(request, ["docker", "pull", request["reference"]])
    if code != 0:
        return {"code": code, "lines": lines, "image": None}
    found = image_facts(request["reference"])
    if found["RootFS"]["Layers"] != request["layers"]:
        raise SystemExit(f"{request['reference']} has other layers than the head's image")
    retag(found["Id"], request["tag"])
    docker("rmi", request["reference"])
    return {"code": 0, "lines": lines, "image": image_facts(request["tag"])}


# the plugin's selfcheck


def images_selfcheck(request):
    """Run request["argv"] (a container that ends by itself), unless request["note"] says that it passed with request["key"]."""
    path = os.path.expanduser(request["note"])
    note = read_json(path)
    if note and note["key"] == request["key"]:
        return {"cached": True, "code": 0, "lines": note["lines"]}
    docker("rm", "--force", request["container"])  # of a check that was killed
    code, lines = logged(request, expanded(request["argv"]))
    if code == 0:
        write_json(path, {"key": request["key"], "lines": lines})
    return {"cached": False, "code": code, "lines": lines}


ACTIONS |= {
    "images_look": images_look,
    "images_watch": images_watch,
    "images_cancel": images_cancel,
    "images_pull": images_pull,
    "images_build": images_build,
    "images_archive": images_archive,
    "images_load": images_load,
    "images_adopt": images_adopt,
    "images_push": images_push,
    "images_fetch": images_fetch,
    "images_selfcheck": images_selfcheck,
}
