"""`invoke resync`: every worker is brought to the head's files, by rsync streams that run on the head.

One request to each node compares; only what is missing or different is copied, into a folder of this tool's own beside the final place.
A file gets its final name when it was checked there. Nothing else on a worker is deleted or overwritten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from cluster.errors import LaunchError
from cluster.execute import combined
from cluster.plan import Step
from cluster.ranks import Rank
from cluster.weights import hashing, held, looks, nfs
from cluster.weights.looks import Say, View, request
from cluster.weights.progress import gib
from cluster.weights.snapshots import Snapshot
from cluster.weights.streams import Streams

_PREPARE_LIMIT_S = 600.0
_ADOPT_LIMIT_S = 1200.0
SPARE_BYTES = 256 << 20  # left free on a disk beyond what is copied
_ADOPT_BYTES = 16 << 30  # so many are checked and settled in one request
Keep = Callable[[], None]


@dataclass(frozen=True)
class Order:
    """Files that one worker lacks of one snapshot, as its agent is told of them. staging and copy: its answer to sync_prepare."""

    rank: Rank
    snapshot: Snapshot
    files: tuple[dict[str, Any], ...]
    staging: str = ""
    copy: tuple[str, ...] = ()
    there: int = 0

    def sizes(self) -> dict[str, int]:
        return {file["path"]: file["size"] for file in self.files if file["path"] in self.copy}


def resync(view: View, say: Say, keep: Keep = lambda: None) -> None:
    """Bring every worker to the head's manifest. Raises LaunchError when a node fails, or holds something else in the end."""
    view.raise_failures()
    for snapshot in view.snapshots:
        wrong = view.findings(view.cluster.head, snapshot)
        if wrong:
            raise looks.refuse(view.cluster.head, wrong, f"{snapshot.label} is not complete, so nothing is copied from here")
    if view.cluster.effective.settings.nfs_share:
        _check_mounts(view, say)
        return
    _hash_head(view, say, keep)
    wanted = orders(view)
    for rank in view.workers:
        if not any(order.rank == rank for order in wanted):
            say(f"{rank.role}: weights complete, as on the head")
    if wanted:
        _copy(view, _prepared(view, wanted, say), say, keep)


def orders(view: View) -> list[Order]:
    """What each worker lacks of each snapshot: missing files, and files that differ from the head's or are bad by themselves."""
    found = []
    for rank in view.workers:
        for snapshot in view.snapshots:
            wrong = {each.path: each.kind for each in view.findings(rank.role, snapshot)}
            manifest, head = view.manifests[snapshot], view.of(view.cluster.head, snapshot)
            there = view.of(rank.role, snapshot)
            files = held.served(head, manifest)
            names = [path for path in files if path in wrong or path not in there.files]
            if names:
                found.append(Order(rank, snapshot, tuple(_told(view, snapshot, path, wrong.get(path)) for path in names)))
    return found


def _told(view: View, snapshot: Snapshot, path: str, kind: str | None) -> dict[str, Any]:
    file = view.of(view.cluster.head, snapshot).files[path]
    manifest = view.manifests[snapshot]
    entry = manifest.files.get(path) if manifest else None
    sha256 = (entry.sha256 if entry else None) or file.known_sha256 or file.sha256
    suspect = kind == "content"  # its size and header are right: only a hash tells it from the good one
    return {"path": path, "size": file.size, "digest": file.digest, "blob": file.blob, "sha256": sha256, "suspect": suspect}


def _check_mounts(view: View, say: Say) -> None:
    errors = []
    for rank in view.workers:
        wrong = [w for s in view.snapshots for w in (*view.findings(rank.role, s), *nfs.findings(view, rank, view.of(rank.role, s)))]
        if wrong:
            errors.append(looks.refuse(rank.role, wrong, "the head's weights are not mounted as they must be (NFS_SHARE=1)"))
        else:
            mount = view.of(rank.role, view.snapshots[0]).mount
            say(f"{rank.role}: weights complete, mounted read-only ({mount['type']} from {mount['source']})")
    if errors:
        raise combined("looking at the mounts", errors)


def _hash_head(view: View, say: Say, keep: Keep) -> None:
    """With SYNC_VERIFY=sha256 every file needs a hash to be compared with: the head's are computed where none is known."""
    if view.cluster.effective.settings.sync_verify != "sha256":
        return
    head = view.cluster.head
    missing = []
    for job in hashing.jobs(view, [head], again=False):
        manifest = view.manifests[job.snapshot]
        known = {path for path, entry in manifest.files.items() if entry.sha256} if manifest else set()
        files = tuple(file for file in job.files if file[0] not in known)
        missing += [replace(job, files=files)] if files else []
    if missing:
        hashing.run(view, missing, say, keep)


# --- room on the workers ---


def _prepared(view: View, wanted: list[Order], say: Say) -> list[Order]:
    """The orders as the workers answered: links made, folders made, room checked. Raises LaunchError when one has no room."""
    with_hash = view.cluster.effective.settings.sync_verify == "sha256"
    done, errors, room = [], list[LaunchError](), dict[str, int]()
    for order in wanted:
        folder = view.of(order.rank.role, order.snapshot).folder
        ask = request(order.rank, "sync_prepare", folder=folder, files=order.files, with_hash=with_hash)
        results = view.cluster.nodes.run([Step(order.rank.role, "make room", ask, _PREPARE_LIMIT_S)])
        errors += results.failures.values()
        for answer in results.answers.values():
            room[order.rank.role] = room.get(order.rank.role, 0) + answer["need_bytes"]
            errors += _lacks(order, folder, answer, room[order.rank.role] - answer["need_bytes"])
            done.append(replace(order, staging=answer["staging"], copy=tuple(answer["copy"]), there=sum(answer["there"].values())))
            if answer["linked"]:
                say(f"{order.rank.role}: {len(answer['linked'])} files of {order.snapshot.label} were there and are linked again")
    if errors:
        raise combined("making room on the workers", errors)
    return done


def _lacks(order: Order, folder: str, answer: dict[str, Any], before: int) -> list[LaunchError]:
    """What keeps a worker from taking the copy; `before`: bytes that its other snapshots need of the same disk."""
    role, found = order.rank.role, []
    if answer["copy"] and not answer["rsync"]:
        found.append(LaunchError("there is no rsync", node=role, hint="sudo apt install rsync"))
    lack = before + answer["need_bytes"] + SPARE_BYTES - answer["free_bytes"]
    if answer["need_bytes"] and lack > 0:
        what = (
            f"{gib(lack)} ({lack} bytes) more must be free for {order.snapshot.label} at {folder}: {gib(answer['need_bytes'])} are to come"
        )
        found.append(LaunchError(what, node=role, hint="df -h; remove what is not needed, or set the node's HF_HOME"))
    return found


# --- copying ---


def _copy(view: View, todo: list[Order], say: Say, keep: Keep) -> None:
    begin = time.monotonic()
    copied = [order for order in todo if order.copy]
    for order in copied:
        size = sum(order.sizes().values())
        left = f", {gib(order.there)} of it from an earlier copy" if order.there else ""
        say(f"{order.rank.role}: copying {len(order.copy)} files of {order.snapshot.label}, {gib(size)}{left}")
    sent, errors = Streams(view, copied).run(say, keep) if copied else ({}, {})
    for order in copied:
        errors.setdefault(order.rank.role, []).extend(_adopt(view, order, role_failed=order.rank.role in errors, say=say, keep=keep))
    failures = [error for each in errors.values() for error in each]
    if failures:
        raise combined("copying the weights", failures)
    _prove(view, {order.rank.role for order in todo})
    for role in dict.fromkeys(order.rank.role for order in todo):
        took = time.monotonic() - begin
        rate = f", {gib(sent[role])} sent in {took:.1f} s" if sent.get(role) else ""
        say(f"{role}: weights complete, as on the head{rate}")


def _adopt(view: View, order: Order, *, role_failed: bool, say: Say, keep: Keep) -> list[LaunchError]:
    """Have the arrived files checked and put in place, portion by portion. After a failed stream only whole ones are."""
    with_hash = view.cluster.effective.settings.sync_verify == "sha256"
    folder = view.of(order.rank.role, order.snapshot).folder
    arrived = [file for file in order.files if file["path"] in order.copy]
    links = [file for file in order.files if file["path"] not in order.copy]
    errors: list[LaunchError] = []
    for portion in _portions(arrived):
        ask = request(order.rank, "sync_adopt", folder=folder, files=portion, links=links, with_hash=with_hash)
        results = view.cluster.nodes.run([Step(order.rank.role, "take over copied files", ask, _ADOPT_LIMIT_S)])
        errors += [] if role_failed else results.failures.values()  # what broke the stream keeps this from the worker, too
        for done in (file for answer in results.answers.values() for file in answer["files"]):
            for aside in done["aside"]:
                say(f"{order.rank.role}: the former file is kept as {aside}")
            if done["wrong"] and not (role_failed and done["wrong"][0] in ("short", "unreadable")):
                kind, expected, actual = done["wrong"]
                bad = held.Finding(order.rank.role, done["path"], kind, expected, actual, "invoke resync")
                errors.append(
                    LaunchError(f"on arrival {bad.text()}", node=order.rank.role, hint="invoke verify --full; then invoke resync")
                )
        keep()
    return errors


def _portions(files: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    portion, size = list[dict[str, Any]](), 0
    for file in files:
        portion.append(file)
        size += file["size"]
        if size >= _ADOPT_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _prove(view: View, roles: set[str]) -> None:
    """Look again at the workers that were changed. Raises LaunchError when one still differs."""
    view.refresh(roles)
    view.raise_failures()
    for role in sorted(roles):
        wrong = [each for snapshot in view.snapshots for each in view.findings(role, snapshot)]
        if wrong:
            raise looks.refuse(role, wrong, "the weights still differ from the head's after the copy")
