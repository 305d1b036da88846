"""What an image is built from: Dockerfile, .dockerignore and overlay/, as one tar and one stamp.

The stamp is a sha256 over the sorted (path, executable or not, content); times, owners and the rest of the mode are left out, so that
every checkout of the same sources has the same one. The tar holds exactly the stamped files.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import LaunchError

_TOP = ("Dockerfile", ".dockerignore", "overlay")
_CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "build", "dist"}
MOST_BYTES = 64 << 20  # it travels inside one request; weights and wheels do not belong there


@dataclass(frozen=True)
class Entry:
    """One file: its content and whether it is executable."""

    content: bytes
    executable: bool


Sources = Mapping[str, Entry]


def sources(root: Path) -> Sources:
    """The files of a build by their path from `root`. Raises LaunchError when there is no Dockerfile, or too much beside it."""
    if not (root / "Dockerfile").is_file():
        raise LaunchError(f"there is no Dockerfile in {root}", hint="build in a checkout of this repository; or name a made image in IMAGE")
    found: dict[str, Entry] = {}
    left = MOST_BYTES
    for path in _paths(root):
        left -= (root / path).stat().st_size
        if left < 0:
            hint = "move large files out of overlay/, or name them in .gitignore"
            raise LaunchError(f"the build context is larger than {MOST_BYTES >> 20} MiB (at {path})", hint=hint)
        found[path] = Entry((root / path).read_bytes(), bool((root / path).stat().st_mode & 0o100))
    return found


def _paths(root: Path) -> list[str]:
    """Relative paths, sorted. Git's own view where there is one (a file that is ignored is in no build), else all but caches."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *_TOP]
    try:
        listed = subprocess.run(command, capture_output=True, text=True)
        names = set(listed.stdout.split("\0")) - {""} if listed.returncode == 0 else None
    except FileNotFoundError:
        names = None
    if names is None:
        tops = [root / top for top in _TOP]
        every = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))]
        names = {name for path in every if not _cached(name := str(path.relative_to(root)))}
    return sorted(name for name in names if (root / name).is_file())


def _cached(name: str) -> bool:
    parts = name.split("/")
    return bool(_CACHES & set(parts)) or name.endswith(".pyc") or any(part.endswith(".egg-info") for part in parts)


def stamp(found: Sources, base: str | None = None) -> str:
    """16 hexadecimal digits. `base`: the base image when it is not the Dockerfile's own."""
    whole = hashlib.sha256()
    for path in sorted(found):
        entry = found[path]
        whole.update(json.dumps([path, entry.executable, hashlib.sha256(entry.content).hexdigest()]).encode())
    whole.update(json.dumps(["base", base]).encode() if base else b"")
    return whole.hexdigest()[:16]


def current(root: Path, base: str | None = None) -> str | None:
    """The stamp of the sources in `root`; None where there is no Dockerfile to build from."""
    return stamp(sources(root), base) if (root / "Dockerfile").is_file() else None


def tar(found: Sources) -> bytes:
    """The build context, the same bytes for the same sources."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(found):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(found[path].content), 0o755 if found[path].executable else 0o644
            archive.addfile(entry, io.BytesIO(found[path].content))
    return buffer.getvalue()


def base_of(found: Sources, given: str | None = None) -> str | None:
    """The base image of the build: `given` (BUILD_BASE), else what the Dockerfile's ARG BASE names; None where it names none."""
    named = re.search(r"^ARG BASE=(\S+)$", found["Dockerfile"].content.decode(errors="replace"), re.MULTILINE)
    return given or (named[1] if named else None)
