"""Who measured: this project's version and commit, and one hash over the lab's sources."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path

from bench import provenance as bench_provenance


@functools.cache
def tool() -> dict[str, str | bool | None]:
    """The tool part of a receipt. The commit is None outside a git checkout."""
    known = bench_provenance.tool()
    folder = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.glob("prompts/*.txt")]):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return {
        "name": known.name,
        "version": known.version,
        "git_commit": known.git_commit,
        "git_dirty": known.git_dirty,
        "ablit_sha256": digest.hexdigest(),
        "python": platform.python_version(),
    }
