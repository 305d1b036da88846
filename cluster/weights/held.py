"""What a node holds of a snapshot, as its agent answered, and what is wrong with it. Pure: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.weights.manifest import Entry, Manifest
from cluster.weights.snapshots import Snapshot

_WORDS = {
    "missing": "is missing",
    "dangling": "is a link to nothing",
    "short": "is truncated",
    "oversize": "is too long",
    "header": "has not the right safetensors header",
    "json": "is not JSON",
    "index": "is no usable index of the shards",
    "tensors": "lacks tensors that the index lists",
    "content": "has other content",
    "unreadable": "cannot be read",
    "absent": "is not on this node",
    "writable": "is writable",
    "server": "is mounted from another address than the fabric's",
    "version": "is not mounted by NFS 4",
    "connections": "uses one connection",
}
_INCOMPLETE = ("missing", "dangling", "absent")


@dataclass(frozen=True)
class File:
    """One file: size in bytes; blob: the name its link points to in the hub cache; digest: sha256 of a tensor file's header, or of a
    small file's whole content; sha256: of the whole content, when it was computed since the last change."""

    size: int
    blob: str | None
    digest: str | None
    sha256: str | None

    @property
    def known_sha256(self) -> str | None:
        """What the content should be by its own name: the hub cache calls LFS files by their sha256."""
        return self.blob if self.blob and re.fullmatch(r"[0-9a-f]{64}", self.blob) else None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: which file of which snapshot on which node, in words, and the command that repairs it."""

    node: str
    path: str
    kind: str
    expected: Any
    actual: Any
    repair: str

    def text(self) -> str:
        values = [f"{word} {value}" for word, value in (("expected", self.expected), ("found", self.actual)) if value is not None]
        return f"{self.path} {_WORDS[self.kind]}" + (f" ({', '.join(values)})" if values else "")


@dataclass(frozen=True)
class Held:
    """A snapshot on one node. problems: what the node's agent found by itself: path, kind, expected, actual."""

    node: str
    snapshot: Snapshot
    folder: str
    exists: bool
    files: Mapping[str, File]
    problems: tuple[Mapping[str, Any], ...]
    others: tuple[str, ...]
    leftovers: tuple[Mapping[str, Any], ...]
    mount: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())


def read(node: str, snapshot: Snapshot, answer: Mapping[str, Any]) -> Held:
    """One snapshot of the agent's answer to weights_scan."""
    files = {path: File(f["size"], f["blob"], f["digest"], f["sha256"]) for path, f in answer["files"].items()}
    names = ("folder", "exists", "problems", "others", "leftovers", "mount")
    given: dict[str, Any] = {name: tuple(answer[name]) if isinstance(answer[name], list) else answer[name] for name in names}
    return Held(node=node, snapshot=snapshot, files=files, **given)


def from_files(held: Held) -> Mapping[str, Entry]:
    """The entries of a manifest for a snapshot that is complete: hashes as far as they are known."""
    return {path: Entry(file.size, file.sha256 or file.known_sha256 or _whole(path, file)) for path, file in held.files.items()}


def _whole(path: str, file: File) -> str | None:
    return None if path.endswith(".safetensors") else file.digest


def findings(held: Held, manifest: Manifest | None, head: Held | None, repair: str) -> list[Finding]:
    """What is wrong with a node's snapshot: by itself, against the manifest, and against the head's. One finding per file at most."""
    if not held.exists:
        others = f"other revisions: {', '.join(held.others)}" if held.others else None
        return [Finding(held.node, held.folder, "absent", None, others, repair)]
    found: dict[str, Finding] = {}
    for path, kind, expected, actual in (*_own(held), *_against_manifest(held, manifest), *_against_head(held, manifest, head)):
        if expected is None and kind in _INCOMPLETE and manifest and path in manifest.files:
            expected = f"{manifest.files[path].size} bytes"
        found.setdefault(path, Finding(held.node, path, kind, expected, actual, repair))
    return list(found.values())


Fault = tuple[str, str, Any, Any]


def _own(held: Held) -> Iterator[Fault]:
    for each in held.problems:
        yield each["path"], each["kind"], each["expected"], each["actual"]
    for path, file in held.files.items():
        hashed = file.sha256 or _whole(path, file)
        if file.known_sha256 and hashed and hashed != file.known_sha256:
            yield path, "content", f"sha256 {file.known_sha256}", hashed


def _against_manifest(held: Held, manifest: Manifest | None) -> Iterator[Fault]:
    for path, entry in (manifest.files if manifest else {}).items():
        file = held.files.get(path)
        hashed = (file.sha256 or _whole(path, file)) if file else None
        if file is None:
            yield path, "missing", f"{entry.size} bytes", None
        elif file.size != entry.size:
            yield path, "short" if file.size < entry.size else "oversize", entry.size, file.size
        elif entry.sha256 and hashed and hashed != entry.sha256:
            yield path, "content", f"sha256 {entry.sha256}", hashed


def _against_head(held: Held, manifest: Manifest | None, head: Held | None) -> Iterator[Fault]:
    for path, theirs in served(head, manifest).items() if head else ():
        file = held.files.get(path)
        if file is None:
            yield path, "missing", f"{theirs.size} bytes", None
        elif file.size != theirs.size:
            yield path, "short" if file.size < theirs.size else "oversize", theirs.size, file.size
        elif file.digest != theirs.digest:
            yield path, "header" if path.endswith(".safetensors") else "content", theirs.digest, file.digest


def served(head: Held, manifest: Manifest | None) -> Mapping[str, File]:
    """The head's files that every node must have: those of the manifest; without one, all."""
    return {path: file for path, file in head.files.items() if manifest is None or path in manifest.files}


def state_of(found: list[Finding]) -> str:
    """complete, absent, incomplete (only files that are not there) or damaged."""
    if not found:
        return "complete"
    if found[0].kind == "absent":
        return "absent"
    return "incomplete" if all(each.kind in _INCOMPLETE for each in found) else "damaged"
