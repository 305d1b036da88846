# mypy: ignore-errors
"""The node agent's part that sends an image: one `docker save`, many `docker load`. Standard library only, Linux.

Sent after agent_images.py in the same program (see agent_client.py). It runs on the head, or on the machine of the person at the
launcher, and reaches the targets by that machine's own ssh client, which is several times as fast as ssh in Python.
"""

try:
    from cluster.agent import ACTIONS, write_json
    from cluster.agent_images import begin
except ImportError:  # sent as one text: everything is here already
    pass

import contextlib
import fcntl
import os
import shlex
import subprocess
import tempfile
import time

CHUNK = 1 << 20
SSH_OPTIONS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=8", "-o", "Compression=no"),
    # A peer that is silent for 20 s is gone: TCP alone takes a quarter of an hour to see that.
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4", "-o", "LogLevel=ERROR"),
)  # fmt: skip


def ssh_to(target):
    """The ssh words that reach a target by its fast address, under the host key it is known by.

    target: words (options and destination, the destination last), ip (the address to use, None: as the destination says).
    No target is this machine itself: no words.
    """
    if target is None:
        return []
    words = target["words"]
    seen = subprocess.run(["ssh", "-G", *words], capture_output=True, text=True, check=False)
    given = dict(line.split(" ", 1) for line in seen.stdout.splitlines() if " " in line)
    jumps = given.get("proxyjump", "none") != "none" or given.get("proxycommand", "none") != "none"
    if target["ip"] is None or seen.returncode or jumps or given["hostname"] == target["ip"]:
        return ["ssh", *SSH_OPTIONS, *words]
    known = given["hostname"] if given["port"] == "22" else f"[{given['hostname']}]:{given['port']}"
    alias = given.get("hostkeyalias", known)
    return ["ssh", *SSH_OPTIONS, "-o", f"HostName={target['ip']}", "-o", f"HostKeyAlias={alias}", *words]


def ship_route(request):
    """Which targets this machine's own ssh cannot log in to, with ssh's reason."""
    try:
        tries = {role: subprocess.Popen(at(ssh_to(target), "true"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE) for role, target in request["targets"].items()}  # fmt: skip
    except FileNotFoundError:
        return {"closed": dict.fromkeys(request["targets"], "there is no ssh client")}
    answers = {role: process.communicate()[1].decode(errors="replace").strip() for role, process in tries.items()}
    return {"closed": {role: answers[role] or "no reason given" for role, process in tries.items() if process.returncode != 0}}


def at(prefix, *argv):
    """argv on the machine that `prefix` (ssh words, or nothing for this one) reaches."""
    return [*prefix, shlex.join(argv)] if prefix else list(argv)


def run_at(prefix, *argv):
    done = subprocess.run(at(prefix, *argv), capture_output=True, text=True, errors="replace", check=False, timeout=120)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")


def ship_send(request):
    """One `docker save`, copied into a `docker load` on every target at once. The image travels under the name request["own"].

    A target that fails is left out from then on, and stands in "failed" with its last lines; the others go on. Nothing on a
    target has changed before its load has ended well: an archive that is cut short is refused as a whole.
    """
    source = ssh_to(request["source"])
    run_at(source, "docker", "tag", request["image"], request["own"])
    begun = time.monotonic()
    try:
        process, note, first = start_save(request, source)
        loads = {role: Load(at(ssh_to(target), "docker", "load", "--quiet")) for role, target in request["targets"].items()}
        sent = pump(request, process, note, first, list(loads.values()))
        said = process.stderr.read().decode(errors="replace").strip()
        whole = process.wait() == 0
        failed = {role: why for role, why in ((role, load.end(whole)) for role, load in loads.items()) if why}
    finally:
        with contextlib.suppress(SystemExit, FileNotFoundError):
            run_at(source, "docker", "rmi", request["own"])
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.expanduser(request["status"]))
    if not whole and any(load.open for load in loads.values()):  # else it was ended because nobody was left to read
        raise SystemExit(f"docker save ended with {process.returncode} after {sent} bytes: {said or 'it was stopped'}")
    return {"bytes": sent, "seconds": time.monotonic() - begun, "failed": failed}


def start_save(request, source):
    """docker save of one platform where this docker can choose (an index of several cannot be loaded elsewhere), else as it is."""
    for more in (["--platform", request["platform"]], []):
        words = at(source, "docker", "save", *more, request["own"])
        process, note = begin(request, words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = process.stdout.read(CHUNK)
        if first:
            return process, note, first
        said = process.stderr.read().decode(errors="replace").strip()
        process.wait()
    raise SystemExit(f"docker save {request['own']}: {said or f'exit {process.returncode}'}")


class Load:
    """docker load on one target, fed by a pipe."""

    def __init__(self, argv):
        self.error = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process does)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=self.error, stderr=self.error)
        with contextlib.suppress(OSError):  # a larger pipe, where the limit of this user allows it
            fcntl.fcntl(self.process.stdin, fcntl.F_SETPIPE_SZ, CHUNK)
        self.open = True

    def write(self, data):
        try:
            self.process.stdin.write(data)
        except OSError:
            self.open = False

    def end(self, whole):
        """The last lines when it failed, else nothing. An archive that is not whole must not look like one that ended."""
        if not whole:
            self.process.terminate()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        code = self.process.wait()
        self.error.seek(0)
        said = self.error.read().decode(errors="replace").strip()
        return "" if code == 0 and self.open else said or f"exit {code}"


def pump(request, process, note, data, loads):
    """Copy until the source ends or no target is left; bytes read. The status file has the count, twice a second."""
    sent, told = 0, time.monotonic()
    while data:
        for load in loads:
            if load.open:
                load.write(data)
        sent += len(data)
        if not any(load.open for load in loads):
            process.terminate()
            break
        if time.monotonic() - told > 0.5:
            told = time.monotonic()
            write_json(os.path.expanduser(request["status"]), {**note, "bytes": sent})
        data = process.stdout.read(CHUNK)
    return sent


ACTIONS |= {"ship_route": ship_route, "ship_send": ship_send}
