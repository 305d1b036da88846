"""Hashing a snapshot's files on their nodes, all nodes at once, in batches: so that progress shows and a lost connection loses little."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cluster.errors import LaunchError
from cluster.plan import Step
from cluster.weights import progress
from cluster.weights.looks import Say, View, request
from cluster.weights.snapshots import Snapshot

_BATCH_BYTES = 16 << 30
_BATCH_FILES = 20  # one for each core of a Spark
_BATCH_LIMIT_S = 3600.0


@dataclass(frozen=True)
class Job:
    """Files of one snapshot on one node, with their sizes in bytes."""

    role: str
    snapshot: Snapshot
    files: tuple[tuple[str, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.files)


def jobs(view: View, roles: Iterable[str], *, again: bool) -> list[Job]:
    """What is to be hashed: files without a hash since their last change; with `again`, all."""
    found = []
    for role in roles:
        for held in view.held[role]:
            files = tuple((path, f.size) for path, f in held.files.items() if again or f.sha256 is None)
            found += [Job(role, held.snapshot, files)] if files else []
    return found


def batches(job: Job) -> Iterator[list[str]]:
    """Names, the largest files first, in portions of some bytes and files."""
    batch, size = list[str](), 0
    for path, count in sorted(job.files, key=lambda file: -file[1]):
        if batch and (size + count > _BATCH_BYTES or len(batch) == _BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += count
    if batch:
        yield batch


def run(view: View, todo: list[Job], say: Say, keep: Callable[[], None] = lambda: None) -> None:
    """Hash on every node; the nodes remember, and `view` is read again. Raises LaunchError for a node that fails."""
    totals: dict[str, int] = {}
    for job in todo:
        totals[job.role] = totals.get(job.role, 0) + job.size_bytes
    done, ended = dict.fromkeys(totals, 0), threading.Event()

    def one_node(role: str) -> None:
        for job in (job for job in todo if job.role == role):
            sizes = dict(job.files)
            for batch in batches(job):
                if ended.is_set():
                    return
                _ask(view, job, batch)
                done[role] += sum(sizes[path] for path in batch)

    with progress.shown("hashed", totals, say) as tell, concurrent.futures.ThreadPoolExecutor(max(1, len(totals))) as pool:
        futures = [pool.submit(one_node, role) for role in totals]
        try:
            while concurrent.futures.wait(futures, timeout=0.5).not_done:
                tell(done)
                keep()
        finally:
            ended.set()  # after Ctrl-C no further batch begins
        for future in futures:
            future.result()
    view.refresh(totals)


def _ask(view: View, job: Job, batch: list[str]) -> None:
    rank = view.ranks[job.role]
    folder = view.of(job.role, job.snapshot).folder
    step = Step(job.role, "hash files", request(rank, "weights_hash", folder=folder, files=batch), _BATCH_LIMIT_S)
    answer = view.cluster.nodes.run([step]).all_or_raise("hashing")[job.role]
    lost = [path for path, found in answer["sha256"].items() if found is None]
    if lost:
        raise LaunchError(f"cannot read {lost[0]} in {folder}, or it changed meanwhile", node=job.role, hint="invoke verify --full")
