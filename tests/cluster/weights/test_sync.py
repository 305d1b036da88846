"""resync with real rsync over a real sshd: the head is this machine, the worker a login with another home. And the worker's own checks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster import session, settings
from cluster.agent_client import ask_agent
from cluster.errors import LaunchError
from cluster.session import Cluster
from cluster.transport import LocalTransport
from cluster.weights import looks, sync, verify
from tests.cluster.sshd import Client
from tests.fakes import snapshot

SHARD = "model-00002-of-00003.safetensors"


@dataclass
class Pair:
    """A head, which is this machine, and a worker behind ssh; the snapshot lies on the head."""

    cluster: Cluster
    head: Path
    worker: Path
    said: list[str]

    def resync(self) -> str:
        """What was said."""
        self.said.clear()
        sync.resync(looks.look(self.cluster, self.said.append), self.said.append)
        return "\n".join(self.said)

    def kinds(self, *, full: bool = False) -> list[tuple[str, str]]:
        rows = verify.verify(self.cluster, self.said.append, full=full)
        return [(row.node, each.kind) for row in rows for each in row.findings]


@pytest.fixture
def pair(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    if shutil.which("rsync") is None:
        pytest.skip("no rsync here: apt-get install rsync")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    client.config(f"Host *\n  IdentityFile {client.key}\n  UserKnownHostsFile {client.known_hosts}\n")
    server = client.servers[0]
    environ = {
        "HEAD_IP": "127.0.0.1",
        "WORKER_IP": server.address,
        "WORKER_SSH": f"{server.address}:{server.port}",
        "SSH_CONFIG": str(client.home / ".ssh/config"),
        "HEAD_HF_HOME": str(tmp_path / "hf"),
        "WORKER_HF_HOME": "~/cache",
        "MODEL": snapshot.REPO,
        "MODEL_REVISION": snapshot.REVISION,
        "SPEC_METHOD": "none",
        "SYNC_STREAMS": "2",
    }
    head = snapshot.hub_cache(tmp_path / "hf", snapshot.model_files(), shared=True)
    worker = server.folder / "home/cache/hub/models--lab--tiny/snapshots" / snapshot.REVISION
    effective = settings.load({"kit": "spark2"}, environ=environ, path=Path("/nonexistent/.env"))
    with session.opened(effective) as cluster:
        yield Pair(cluster, head, worker, [])
    shutil.rmtree(server.folder / "home", ignore_errors=True)
    (server.folder / "home").mkdir()


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_a_fault_and_its_repair(pair: Pair) -> None:
    assert "worker: copying 7 files of lab/tiny@aaaaaaaaaaaa" in pair.resync()
    assert content(pair.worker) == snapshot.model_files()
    assert pair.resync() == "worker: weights complete, as on the head"
    bad = (pair.worker / SHARD).resolve()
    bad.write_bytes(bad.read_bytes()[:-5] + b"wrong")
    assert pair.kinds() == []
    assert pair.kinds(full=True) == [("worker", "content")]
    assert f"worker: the former file is kept as {bad}.bad-" in pair.resync()
    assert pair.kinds(full=True) == []
    assert content(pair.worker) == snapshot.model_files()


def test_a_head_that_is_damaged_is_refused_and_nothing_is_made(pair: Pair) -> None:
    (pair.head / SHARD).unlink()
    with pytest.raises(LaunchError, match=r"(?s)head: lab/tiny@aaaaaaaaaaaa is not complete.*is missing.*try: invoke download"):
        pair.resync()
    assert not pair.worker.exists()


def test_no_log_in_from_the_head(pair: Pair, client: Client) -> None:
    """The launcher reaches the worker, but the head's own ssh does not: another key file is named in between."""
    looked = looks.look(pair.cluster, pair.said.append)
    client.config(f"Host *\n  IdentityFile /nowhere\n  IdentitiesOnly yes\n  UserKnownHostsFile {client.known_hosts}\n")
    with pytest.raises(
        LaunchError, match=r"(?s)worker: the copy from the head failed: ssh from the head to the worker failed.*Permission denied"
    ):
        sync.resync(looked, pair.said.append)
    assert content(pair.worker) == {}


# --- the worker's part alone: what was copied is not believed ---


class Worker:
    """This machine as a worker, asked by the agent requests that resync makes."""

    def __init__(self, folder: Path) -> None:
        self.repo = folder / "hub/models--lab--tiny"
        self.folder = self.repo / "snapshots" / snapshot.REVISION
        self.state = folder / "state"
        self.files = snapshot.model_files()

    def ask(self, action: str, *names: str, **more: Any) -> dict[str, Any]:
        wanted = [self.wanted(name) for name in names]
        request = {"action": action, "name": "the weights", "state_dir": str(self.state), "folder": str(self.folder), "files": wanted}
        return ask_agent(LocalTransport(), {**request, "with_hash": False, "links": [], **more})

    def wanted(self, name: str, suspect: bool = False) -> dict[str, Any]:
        """As the head's scan tells of the file."""
        from cluster import agent_weights

        head = self.state.parent / "head"
        head.mkdir(exist_ok=True)
        (head / name).write_bytes(self.files[name])
        look: Any = agent_weights.read_header if name.endswith(".safetensors") else agent_weights.read_small
        digest = (
            look(str(head / name), len(self.files[name]))[0] if name.endswith(".safetensors") else look(str(head / name), name, None)[0]
        )
        blob = snapshot.blob_name(name, self.files[name])
        sha256 = blob if snapshot.is_lfs(name) else None
        return {"path": name, "size": len(self.files[name]), "digest": digest, "blob": blob, "sha256": sha256, "suspect": suspect}

    def stage(self, name: str, data: bytes) -> Path:
        path = Path(self.ask("sync_prepare", name)["staging"]) / name
        path.write_bytes(data)
        return path

    def adopt(self, name: str, **more: Any) -> Any:
        return self.ask("sync_adopt", name, **more)["files"][0]["wrong"]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_only_the_right_bytes_get_the_final_name(worker: Worker) -> None:
    good = worker.files[SHARD]
    staged = worker.stage(SHARD, good[:-1])
    assert worker.adopt(SHARD) == ["short", 4256, 4255]
    assert staged.exists()  # the next copy goes on from here
    staged.write_bytes(good + b"x")
    assert worker.adopt(SHARD) == ["oversize", 4256, 4257]
    assert not staged.exists()
    staged = worker.stage(SHARD, b"x" + good[1:])
    assert worker.adopt(SHARD)[0] == "header"
    staged = worker.stage(SHARD, good[:-1] + b"?")
    assert worker.adopt(SHARD, with_hash=True)[0] == "content"
    assert not worker.folder.exists()
    staged = worker.stage(SHARD, good)
    assert worker.adopt(SHARD, with_hash=True) is None
    assert (worker.folder / SHARD).read_bytes() == good
    assert not staged.parents[1].exists()


def test_a_small_file_is_checked_by_its_whole_content(worker: Worker) -> None:
    worker.stage("tokenizer.json", b'{"version": "9.9"}')
    assert worker.adopt("tokenizer.json")[0] == "header"
    worker.stage("tokenizer.json", worker.files["tokenizer.json"])
    assert worker.adopt("tokenizer.json") is None


def test_room_is_told_in_bytes_and_leftovers_count(worker: Worker) -> None:
    assert worker.ask("sync_prepare", SHARD)["need_bytes"] == 4256
    staged = worker.stage(SHARD, worker.files[SHARD][:1000])
    answer = worker.ask("sync_prepare", SHARD)
    assert (answer["need_bytes"], answer["there"], answer["copy"]) == (3256, {SHARD: 1000}, [SHARD])
    staged.write_bytes(bytes(5000))  # longer than the file: not its beginning
    assert worker.ask("sync_prepare", SHARD)["need_bytes"] == 4256
    assert not staged.exists()


def test_a_blob_that_is_there_is_linked_unless_it_is_suspect(worker: Worker) -> None:
    blob = worker.repo / "blobs" / snapshot.blob_name(SHARD, worker.files[SHARD])
    blob.parent.mkdir(parents=True)
    blob.write_bytes(worker.files[SHARD][:-1] + b"?")  # its size and header are right
    suspect = {"files": [worker.wanted(SHARD, suspect=True)]}
    assert worker.ask("sync_prepare", **suspect)["linked"] == []
    assert not os.path.lexists(worker.folder / SHARD)
    blob.write_bytes(worker.files[SHARD])
    assert worker.ask("sync_prepare", **suspect)["linked"] == [SHARD]
    assert os.readlink(worker.folder / SHARD) == f"../../blobs/{blob.name}"


def test_what_stood_there_is_kept(worker: Worker) -> None:
    """A bad blob, and a plain file in the place of the link: both get another name, and nothing is lost."""
    blob = worker.repo / "blobs" / snapshot.blob_name(SHARD, worker.files[SHARD])
    for path, data in ((blob, b"bad blob"), (worker.folder / SHARD, b"by hand")):
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    worker.stage(SHARD, worker.files[SHARD])
    aside = worker.ask("sync_adopt", SHARD)["files"][0]["aside"]
    assert [Path(name).read_bytes() for name in aside] == [b"bad blob", b"by hand"]
    assert (worker.folder / SHARD).read_bytes() == worker.files[SHARD]
    assert (worker.folder / SHARD).is_symlink()


def test_a_good_file_that_came_meanwhile_is_not_put_aside(worker: Worker) -> None:
    worker.stage(SHARD, worker.files[SHARD])
    blob = worker.repo / "blobs" / snapshot.blob_name(SHARD, worker.files[SHARD])
    blob.parent.mkdir(parents=True)
    blob.write_bytes(worker.files[SHARD])
    inode = blob.stat().st_ino
    assert worker.ask("sync_adopt", SHARD)["files"][0]["aside"] == []
    assert blob.stat().st_ino == inode


def test_a_folder_that_may_not_be_written(worker: Worker) -> None:
    """A file in the way stops root, too; the testbed tries another user's cache."""
    worker.repo.parent.mkdir(parents=True)
    worker.repo.write_text("in the way")
    with pytest.raises(LaunchError, match=r"cannot write to .*/hub \(Not a directory\); it belongs to uid \d"):
        worker.ask("sync_prepare", SHARD)
