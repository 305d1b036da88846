"""The words of one rsync stream from the head to a worker, its progress, and its exit codes as sentences. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster.connect import destination
from cluster.fields import NodeSettings

# BatchMode: nobody is there to type. No shared connection: each stream must have a TCP connection of its own. aes128-gcm first: with the
# processor's AES instructions it is the fastest cipher, and OpenSSH would take another. The keep-alive ends a stream 20 s after the link
# is cut.
SSH_OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "ControlMaster=no", "ControlPath=none", "Compression=no",
    "Ciphers=^aes128-gcm@openssh.com", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=4",
)  # fmt: skip

# rsync's own meaning of its exit codes, and what to do.
_CODES: Mapping[int, tuple[str, str]] = {
    11: ("a file could not be written there, or read here: no room left, or no permission", "df -h and ls -ld of the cache on both nodes"),
    12: ("the connection broke, or there is no rsync on the worker", "invoke resync goes on where it stopped; there: which rsync"),
    20: ("it was stopped", "invoke resync goes on where it stopped"),
    23: ("some files could not be read or written", "ls -l of the named files; is the worker's cache writable?"),
    24: ("files of the head's snapshot vanished meanwhile", "invoke verify; then invoke resync"),
    30: ("the worker stopped answering", "invoke resync goes on where it stopped; check the link: ping, ip -s link"),
    127: ("there is no rsync", "sudo apt install rsync, on both nodes"),
    255: ("ssh from the head to the worker failed", "on the head, as the same user: ssh ADDRESS true; see the last lines"),
}


def sentence(code: int | None) -> tuple[str, str]:
    """What an exit code means, and what to try."""
    if code is None:
        return "it ended without an exit code: killed, or the head restarted", "invoke resync goes on where it stopped"
    return _CODES.get(code, (f"rsync ended with {code}", "man rsync, EXIT VALUES; invoke resync goes on where it stopped"))


@dataclass(frozen=True)
class Target:
    """How the head reaches a worker for copies: its address on the fabric, and login and port as its *_SSH and *_USER say."""

    host: str
    user: str | None
    port: int | None

    @classmethod
    def of(cls, node: NodeSettings) -> Target:
        user, host, port = destination(node.ssh or node.ip or "")
        return cls(node.ip or host, node.user or user, port)

    def place(self, folder: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{f'{self.user}@' if self.user else ''}{host}:{folder}/"


def argv(source: str, target: Target, folder: str, ssh_config: str | None) -> tuple[str, ...]:
    """One stream: the names in the file FILES, below `source`, into `folder` on the worker, links followed.

    --append-verify: what an earlier, cut copy left is continued, and checked as a whole at the end; new files are sent whole.
    """
    ssh = ["ssh", *(["-F", ssh_config] if ssh_config else []), *(["-p", str(target.port)] if target.port else [])]
    ssh += [word for option in SSH_OPTIONS for word in ("-o", option)]
    return (
        "rsync", "--append-verify", "--copy-links", "--times", "--perms", "--chmod=D755,F644", "--protect-args", "--from0",
        "--files-from", "FILES", "--no-inc-recursive", "--timeout=60", "--info=progress2", "--no-human-readable", "--outbuf=L", "--stats",
        f"--rsh={shlex.join(ssh)}", f"{source}/", target.place(folder),
    )  # fmt: skip


def done_bytes(lines: Sequence[str]) -> int:
    """The bytes that a stream has got through, by the last progress line in its output; 0 before there is one."""
    for line in reversed(lines):
        found = re.match(r"\s*(\d+)\s+\d+%\s", line)
        if found:
            return int(found[1])
    return 0


def sent_bytes(lines: Sequence[str]) -> int | None:
    """The file data that went over the wire, by --stats; None when the stream did not come to its end."""
    found = [match for line in lines if (match := re.match(r"Literal data: (\d+) bytes", line))]
    return int(found[-1][1]) if found else None


def errors(lines: Sequence[str]) -> list[str]:
    """What of a stream's last lines is no progress and no statistics. A message may follow a progress line without a line end."""
    progress = re.compile(r"\s*\d+\s+\d+%(\s+\S+/s\s+[\d:?]+(\s+\(xfr.*?\))?)?\s*")
    statistics = re.compile(r"(Number of|Total|Literal|Matched|File list|sent |total size)|\s*$")
    rest = [progress.sub("", line, count=1) if progress.match(line) else line for line in lines]
    return [line for line in rest if not statistics.match(line)][-6:]


def spread(files: Mapping[str, int], streams: int) -> list[list[str]]:
    """Names in at most `streams` portions of about the same bytes: the largest first, always to the lightest portion."""
    portions: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(streams, len(files)))]
    for name, size in sorted(files.items(), key=lambda item: (-item[1], item[0])):
        weight, names = portions[0]
        portions[0] = (weight + size, [*names, name])
        portions.sort(key=lambda portion: portion[0])
    return [names for _, names in portions]
