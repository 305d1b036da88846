"""What a snapshot must hold, as a JSON file beside the run state. It carries its own sha256 and is replaced whole, never edited."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import state
from cluster.errors import LaunchError
from cluster.weights.snapshots import Snapshot


@dataclass(frozen=True)
class Entry:
    """One file: size in bytes; sha256 from the Hub or computed, None when it has not been computed yet."""

    size: int
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """The files of one snapshot by path. source: `hub` (the Hub's own listing) or `files` (read from a complete snapshot).

    exclude: the globs that were left out of the download.
    """

    repo: str
    revision: str
    source: str
    exclude: tuple[str, ...]
    created_unix_s: float
    files: Mapping[str, Entry]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def with_hashes(self, found: Mapping[str, str | None]) -> Manifest:
        """The manifest with the hashes it did not have yet."""
        files = {path: dataclasses.replace(e, sha256=e.sha256 or found.get(path)) for path, e in self.files.items()}
        return dataclasses.replace(self, files=files)


def new(snapshot: Snapshot, source: str, files: Mapping[str, Entry], exclude: tuple[str, ...] = ()) -> Manifest:
    """A manifest made now."""
    return Manifest(snapshot.repo, snapshot.revision, source, exclude, round(time.time(), 3), dict(sorted(files.items())))


def path_of(snapshot: Snapshot) -> Path:
    """Where the manifest of a snapshot is kept: $XDG_STATE_HOME/spark-lab/manifests/REPO@REVISION.json."""
    name = re.sub(r"[^\w.-]", "--", snapshot.repo.strip("/"))
    return state.run_dir("manifests") / f"{name}@{'folder' if snapshot.is_folder else snapshot.revision}.json"


def save(snapshot: Snapshot, manifest: Manifest) -> Path:
    """Write it by a temporary file and rename. Raises LaunchError when the state folder cannot be written."""
    path, body = path_of(snapshot), dataclasses.asdict(manifest)
    text = json.dumps({**body, "sha256": _digest(body)}, indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise LaunchError(f"cannot write the manifest {path}: {error.strerror}", hint="df -h; or another XDG_STATE_HOME") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def load(snapshot: Snapshot) -> tuple[Manifest | None, str]:
    """The manifest of a snapshot, and a note when there is a file that is not it (damaged, or of another revision)."""
    path = path_of(snapshot)
    try:
        found = _read(path)
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return None, f"the manifest {path} is not used: {error}"
    if (found.repo, found.revision) != (snapshot.repo, snapshot.revision):
        what = f"it is of {found.repo}@{found.revision}, wanted is {snapshot.repo}@{snapshot.revision}"
        return None, f"the manifest {path} is not used: {what}"
    return found, ""


def _read(path: Path) -> Manifest:
    body: dict[str, Any] = json.loads(path.read_text())
    if body.pop("sha256") != _digest(body):
        raise ValueError("its content does not match its own sha256")
    files = {name: Entry(**entry) for name, entry in body["files"].items()}
    return Manifest(**{**body, "files": files, "exclude": tuple(body["exclude"])})


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
