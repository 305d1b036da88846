"""Which snapshots a kit serves, where they lie on each node, and the request that asks a node for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from cluster.engines import vllm
from cluster.fields import NodeSettings
from cluster.ranks import Rank
from cluster.settings import Effective


@dataclass(frozen=True)
class Snapshot:
    """One pinned revision of a repository, or a plain folder when `repo` is an absolute path. role: model or drafter."""

    role: str
    repo: str
    revision: str

    @property
    def is_folder(self) -> bool:
        return self.repo.startswith("/")

    @property
    def label(self) -> str:
        return self.repo if self.is_folder else f"{self.repo}@{self.revision[:12]}"

    @property
    def setting(self) -> str:
        """The setting that names it."""
        return "MODEL" if self.role == "model" else "DFLASH_MODEL"

    def folder(self, node: NodeSettings) -> str:
        """The folder that is served on a node; ~ is the node's own home."""
        return vllm.snapshot(self.repo, self.revision, node.hf_home)

    def wanted(self, node: NodeSettings) -> dict[str, Any]:
        """How the node agent is told of it. A drafter uses the model's tokenizer and may come without one."""
        return {"folder": self.folder(node), "tokenizer": self.role == "model"}


def snapshots(effective: Effective) -> tuple[Snapshot, ...]:
    """The model and, with dflash, its drafter; nothing for an engine that brings its own."""
    s = effective.settings
    if effective.kit.engine != "vllm":
        return ()
    model = Snapshot("model", s.model, s.model_revision)
    return (model, Snapshot("drafter", s.dflash_model, s.dflash_revision)) if s.spec_method == "dflash" else (model,)


def scan_request(rank: Rank, wanted: Sequence[Snapshot], run_dir: str) -> dict[str, Any]:
    """The agent request that lists what the rank's node holds of the snapshots."""
    return {
        "action": "weights_scan",
        "name": "the weights",
        "state_dir": state_dir(run_dir),
        "snapshots": [snapshot.wanted(rank.node) for snapshot in wanted],
    }


def state_dir(run_dir: str) -> str:
    """Where a node keeps the digests that were computed on it: beside the run directories of the kits."""
    return str(PurePosixPath(run_dir).parent / "weights")


def shown(rank: Rank, wanted: Sequence[Snapshot]) -> str:
    """What `up` does about the weights on the rank's node, in words."""
    s = rank.settings
    names = " ".join(snapshot.label for snapshot in wanted)
    if rank.number == 0:
        missing = "" if s.skip_download or all(snapshot.is_folder for snapshot in wanted) else "; download what is missing"
        return f"check {names} by sizes and headers{missing}"
    if s.nfs_share:
        return f"check that the head's {names} is mounted read-only"
    return f"check {names} against the head; copy what differs from there, {s.sync_streams} streams, verified by {s.sync_verify}"
