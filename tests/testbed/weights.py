"""A made-up model in the caches of two testbed hosts, and `invoke verify`, `resync` and `up` over them as a user calls them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes import snapshot
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.twin import LOCK, Done, User

HEAD_HOME, WORKER_HOME = "/root/hf-head", "/root/hf-worker"  # two paths: what is one node's must not be used on the other
SHARD = "model-00002-of-00003.safetensors"
KEPT = ".spark-lab-sync"


@dataclass
class Bench:
    """Both hosts with caches of their own, and a user outside. All of it is taken away by `clear`."""

    bed: Testbed
    user: User
    files: Mapping[str, bytes] = field(default_factory=snapshot.model_files)

    @property
    def head(self) -> Host:
        return self.bed.hosts[0]

    @property
    def worker(self) -> Host:
        return self.bed.hosts[1]

    def clear(self) -> None:
        for host in self.bed.hosts:
            for place in (HEAD_HOME, WORKER_HOME, "/root/.local/state/spark-lab"):
                shutil.rmtree(host.path(place), ignore_errors=True)
            host.path(LOCK).unlink(missing_ok=True)

    def fill(self, host: Host, *, shared: bool = False, revision: str = snapshot.REVISION) -> Path:
        """The whole snapshot in the host's cache; its folder as this machine sees it."""
        home = HEAD_HOME if host == self.head else WORKER_HOME
        return snapshot.hub_cache(host.path(home), self.files, shared=shared, revision=revision)

    def folder(self, host: Host, revision: str = snapshot.REVISION) -> Path:
        home = HEAD_HOME if host == self.head else WORKER_HOME
        return host.path(home) / "hub/models--lab--tiny/snapshots" / revision

    def invoke(self, *words: str, **settings: str) -> Done:
        places = {"HEAD_HF_HOME": HEAD_HOME, "WORKER_HF_HOME": WORKER_HOME}
        model = {"MODEL": snapshot.REPO, "MODEL_REVISION": snapshot.REVISION}
        done = self.user.invoke(*words, **{**places, **model, **settings})
        assert "Traceback" not in done.err, done.err
        return done

    def verified(self, *words: str, **settings: str) -> dict[str, dict[str, Any]]:
        """`invoke verify --json`: the entry of each node."""
        done = self.invoke("verify", "--json", *words, **settings)
        found = json.loads(done.out)
        assert done.code == (0 if found["ok"] else 1)
        return {each["node"]: each for each in found["snapshots"]}

    def kinds(self, *words: str, **settings: str) -> dict[str, list[tuple[str, str]]]:
        """What `invoke verify` finds on each node: path and kind."""
        found = self.verified(*words, **settings)
        return {node: [(each["path"], each["kind"]) for each in entry["findings"]] for node, entry in found.items()}

    def content(self, host: Host) -> dict[str, bytes]:
        """Every file of the host's snapshot, read through its links."""
        folder = self.folder(host)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    def whole(self) -> None:
        """The worker's snapshot is the head's, and nothing of a copy is left over."""
        assert self.content(self.worker) == dict(self.files)
        assert self.kinds("--full") == {"head": [], "worker": []}
        assert list(self.worker.path(WORKER_HOME).rglob(f"*{KEPT}*")) == []


NOTHING: dict[str, list[tuple[str, str]]] = {"head": [], "worker": []}
