"""Folders, disks, weights at a shallow look, and what an interrupted download left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.facts.raw import Raw

_SHARED = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "lustre", "9p")


@dataclass(frozen=True)
class Folder:
    """real: the nearest existing folder, links resolved; the space is there. type: of the file system."""

    path: str
    exists: bool
    real: str
    owner: int
    writable: bool
    free_bytes: int
    type: str | None

    @property
    def shared(self) -> bool:
        """Whether other machines may see the same files."""
        return (self.type or "") in _SHARED


@dataclass(frozen=True)
class ModelFolder:
    """A snapshot by its index file. named: how many weight files it names; missing: those absent or empty; index: None: unreadable."""

    path: str
    exists: bool
    config: bool
    index: bool | None
    named: int
    missing: tuple[str, ...]
    empty: tuple[str, ...]
    total_bytes: int | None

    @property
    def complete(self) -> bool:
        return self.exists and self.config and self.named > 0 and self.index is not None and not self.missing and not self.empty


@dataclass(frozen=True)
class Rest:
    """A lock file or an unfinished file of a download. held: a process has the lock."""

    path: str
    age_s: float
    bytes: int
    held: bool

    @property
    def is_lock(self) -> bool:
        return self.path.endswith(".lock")


@dataclass(frozen=True)
class Storage:
    folders: Mapping[str, Folder]
    models: Mapping[str, ModelFolder]
    rests: tuple[Rest, ...]


def parse(raw: Raw) -> Storage:
    node = raw.node
    names = ("path", "exists", "real", "owner", "writable", "free_bytes", "type")
    folders = {label: Folder(*(each[name] for name in names)) for label, each in _told(node, "folders")}
    models = {label: _model(each) for label, each in _told(node, "models")}
    rests = tuple(Rest(each["path"], each["age_s"], each["bytes"], each["held"]) for each in node.get("hub_rests") or ())
    return Storage(folders, models, rests)


def _told(node: Mapping[str, Any], what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The entries that could be looked at."""
    return [(label, each) for label, each in (node.get(what) or {}).items() if each is not None]


def _model(each: Mapping[str, Any]) -> ModelFolder:
    missing, empty = tuple(each["missing"]), tuple(each["empty"])
    return ModelFolder(each["path"], each["exists"], each["config"], each["index"], each["named"], missing, empty, each.get("bytes"))
