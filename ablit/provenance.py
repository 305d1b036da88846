"""Who measured: this project's version and commit, and one hash over the lab's sources. And where a model is from."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from bench import provenance as bench_provenance

_SNAPSHOT = re.compile(r".*/models--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(?:/.*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def origin(model: Path, shipped: Mapping[str, str]) -> dict[str, str]:
    """What is known of a model folder's or a GGUF's source: model_repository and model_revision from its place in a Hub cache, the revision
    from what a download into a plain folder left there; of a GGUF its name and sha256. `shipped`: repository, revision and sha256 of the
    local kit's GGUF, which is known by its content. Raises OSError."""
    notes: dict[str, str] = {}
    if match := _SNAPSHOT.fullmatch(str(model.absolute())):
        notes = {"model_repository": f"{match[1]}/{match[2]}", "model_revision": match[3]}
    elif revision := _downloaded(model):
        notes = {"model_revision": revision}
    if model.suffix != ".gguf":
        return notes
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest == shipped.get("sha256"):
        notes = {"model_repository": shipped["repository"], "model_revision": shipped["revision"]}
    return {**notes, "model_file": model.name, "model_file_sha256": digest}


def _downloaded(model: Path) -> str | None:
    """The commit that the Hub's client noted for the folder's config.json, or for the file."""
    folder, name = (model.parent, model.name) if model.suffix == ".gguf" else (model, "config.json")
    try:
        first = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text().splitlines()[0]
    except (OSError, ValueError, IndexError):
        return None
    return first if _COMMIT.fullmatch(first) else None


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
