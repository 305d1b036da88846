"""`invoke verify`: every node's snapshots against the manifest and the head, as findings, a table and plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster.session import Cluster
from cluster.weights import hashing, looks, nfs
from cluster.weights import manifest as manifests
from cluster.weights.held import Finding, Held, state_of
from cluster.weights.looks import Say, View
from cluster.weights.progress import gib


@dataclass(frozen=True)
class Row:
    """One snapshot on one node. held: None when the node did not answer (then `failure` says why). hashed: files with a sha256."""

    node: str
    held: Held | None
    findings: tuple[Finding, ...]
    failure: str = ""

    @property
    def state(self) -> str:
        return state_of(list(self.findings)) if self.held else "unreachable"

    @property
    def hashed(self) -> int:
        return sum(1 for file in self.held.files.values() if file.sha256) if self.held else 0


def verify(cluster: Cluster, say: Say, *, full: bool = False, again: bool = False) -> list[Row]:
    """Look at every node; with `full` hash all that has no hash since its last change (with `again` everything)."""
    view = looks.look(cluster, say)
    if full:
        hashing.run(view, hashing.jobs(view, view.held, again=again), say)
        _complete_manifests(view)
    return rows(view)


def rows(view: View) -> list[Row]:
    """All snapshots of all nodes, in the order of the ranks."""
    found = []
    for rank in view.cluster.ranks:
        if rank.role in view.failures:
            found.append(Row(rank.role, None, (), str(view.failures[rank.role])))
        for held in view.held.get(rank.role, ()):
            wrong = [*view.findings(rank.role, held.snapshot), *nfs.findings(view, rank, held)]
            found.append(Row(rank.role, held, tuple(wrong)))
    return found


def _complete_manifests(view: View) -> None:
    """Write down the hashes that a proven head has and the manifest has not."""
    for snapshot in view.snapshots:
        manifest = view.manifests.get(snapshot)
        head = view.cluster.head
        if manifest is None or head not in view.held or view.findings(head, snapshot):
            continue
        found = manifest.with_hashes({path: file.sha256 for path, file in view.of(head, snapshot).files.items()})
        if found != manifest:
            view.manifests[snapshot] = found
            manifests.save(snapshot, found)


def good(found: list[Row]) -> bool:
    return all(row.state == "complete" for row in found)


def table(found: list[Row]) -> str:
    """A line for each snapshot on each node, and below it what is wrong and the command that repairs it."""
    head = ("node", "what", "revision", "files", "size", "hashed", "state", "folder")
    body = [_cells(row) for row in found]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in (head, *body)]
    notes = [f"{row.node}: {line}" for row in found for line in _notes(row)]
    repairs = sorted({each.repair for row in found for each in row.findings})
    return "\n".join([*lines, *notes, *(f"try: {repair}" for repair in repairs)])


def _cells(row: Row) -> tuple[str, ...]:
    if row.held is None:
        return (row.node, *["-"] * 5, row.state, "-")
    snapshot, files = row.held.snapshot, row.held.files
    revision = "folder" if snapshot.is_folder else snapshot.revision[:12]
    count = str(len(files))
    return (row.node, snapshot.role, revision, count, gib(row.held.size_bytes), str(row.hashed), row.state, row.held.folder)


def _notes(row: Row) -> list[str]:
    if row.held is None:
        return row.failure.splitlines()
    said = [each.text() for each in row.findings]
    left = row.held.leftovers
    if row.held.exists and row.held.others:
        said.append(f"note: the cache also holds {', '.join(row.held.others)}; only {row.held.snapshot.revision} is served")
    if left:
        size = gib(sum(each["bytes"] for each in left))
        said.append(f"note: {len(left)} unfinished or set-aside files, {size}, such as {left[0]['path']}; remove them when you are sure")
    return said


def as_json(kit: str, found: list[Row]) -> dict[str, Any]:
    """The same as plain data."""
    return {"kit": kit, "ok": good(found), "snapshots": [_plain(row) for row in found]}


def _plain(row: Row) -> dict[str, Any]:
    if row.held is None:
        return {"node": row.node, "state": row.state, "failure": row.failure, "findings": []}
    held = row.held
    keys = ("path", "kind", "expected", "actual", "repair")
    return {
        "node": row.node,
        "what": held.snapshot.role,
        "repo": held.snapshot.repo,
        "revision": held.snapshot.revision,
        "folder": held.folder,
        "state": row.state,
        "files": len(held.files),
        "bytes": held.size_bytes,
        "hashed": row.hashed,
        "findings": [{**{key: getattr(each, key) for key in keys}, "text": each.text()} for each in row.findings],
        "others": list(held.others),
        "leftovers": [dict(each) for each in held.leftovers],
    }
