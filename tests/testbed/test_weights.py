"""`invoke verify` and `invoke resync` over real ssh and rsync: faults of a snapshot, each with its finding and its repair."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import snapshot
from tests.testbed.hosts import Testbed
from tests.testbed.twin import User
from tests.testbed.weights import HEAD_HOME, NOTHING, SHARD, WORKER_HOME, Bench

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


@pytest.fixture
def bench(testbed: Testbed, tmp_path: Path) -> Iterator[Bench]:
    """Both hosts without any weights."""
    made = Bench(testbed, User.at(tmp_path))
    made.clear()
    yield made
    made.clear()


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Both hosts hold the whole snapshot in the classic layout."""
    bench.fill(bench.head)
    bench.fill(bench.worker)
    return bench


@pytest.mark.parametrize("shared", [False, True], ids=["classic", "shared blobs"])
def test_a_copy_from_either_layout_is_whole_and_costs_nothing_the_next_time(bench: Bench, shared: bool) -> None:
    bench.fill(bench.head, shared=shared)
    first = bench.invoke("resync")
    assert first.code == 0, first.err
    assert "worker: copying 7 files of lab/tiny@aaaaaaaaaaaa" in first.err
    folder = bench.folder(bench.worker)
    link = os.readlink(folder / SHARD)
    assert link == f"../../blobs/{snapshot.blob_name(SHARD, bench.files[SHARD])}"
    assert os.readlink(folder / "extra/notes.txt").startswith("../../../blobs/")
    assert (folder / SHARD).resolve().is_relative_to(bench.worker.path(WORKER_HOME) / "hub/models--lab--tiny/blobs")
    bench.whole()
    assert not (folder.parents[1] / "refs").exists()
    second = bench.invoke("resync")
    assert (second.code, "worker: weights complete, as on the head" in second.err) == (0, True)
    assert "copying" not in second.err


def test_the_client_of_the_hub_takes_the_copied_snapshot_for_its_own(bench: Bench) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    bench.fill(bench.head, shared=True)
    assert bench.invoke("resync").code == 0
    hub = bench.worker.path(WORKER_HOME) / "hub"
    found = snapshot_download(snapshot.REPO, revision=snapshot.REVISION, cache_dir=hub, local_files_only=True)
    assert Path(found) == bench.folder(bench.worker)
    seen = scan_cache_dir(hub)
    assert [str(warning) for warning in seen.warnings] == []
    (repo,) = seen.repos
    assert (repo.repo_id, [revision.commit_hash for revision in repo.revisions], repo.nb_files) == ("lab/tiny", [snapshot.REVISION], 7)


def cut(path: Path, to: int) -> None:
    real = path.resolve()
    real.write_bytes(real.read_bytes()[:to])


def lengthen(path: Path, by: int) -> None:
    real = path.resolve()
    real.write_bytes(real.read_bytes() + bytes(by))


def corrupt(path: Path) -> None:
    """Other bytes of the same number, behind the header."""
    real = path.resolve()
    content = real.read_bytes()
    real.write_bytes(content[:-16] + bytes(16))


def dangle(path: Path) -> None:
    path.resolve().unlink()


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: path.unlink(), "is missing (expected 4256 bytes)"),
    "short": (lambda path: cut(path, 3000), "is truncated (expected 4256, found 3000)"),
    "oversize": (lambda path: lengthen(path, 50), "is too long (expected 4256, found 4306)"),
    "empty": (lambda path: cut(path, 0), "is truncated (expected 8, found 0)"),
    "dangling": (dangle, "is a link to nothing (expected 4256 bytes)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_shard_is_found_by_its_header_and_mended(filled: Bench, fault: str) -> None:
    break_it, words = FAULTS[fault]
    assert filled.kinds() == NOTHING
    break_it(filled.folder(filled.worker) / SHARD)
    entry = filled.verified()["worker"]
    kind = {"empty": "short"}.get(fault, fault)
    assert [(f["path"], f["kind"], f["text"], f["repair"]) for f in entry["findings"]] == [
        (SHARD, kind, f"{SHARD} {words}", "invoke resync")
    ]
    assert entry["state"] == ("damaged" if kind in ("short", "oversize") else "incomplete")
    shown = filled.invoke("verify")
    assert (shown.code, f"worker: {SHARD} {words}" in shown.out, "try: invoke resync" in shown.out) == (1, True, True)
    done = filled.invoke("resync")
    assert done.code == 0, done.err
    aside = list(filled.folder(filled.worker).parents[1].glob("blobs/*.bad-*"))
    assert len(aside) == (1 if kind in ("short", "oversize") else 0)
    if fault == "missing":  # only the link was gone: its blob is linked again, nothing is copied
        assert "worker: 1 files of lab/tiny@aaaaaaaaaaaa were there and are linked again" in done.err
        assert "copying" not in done.err
    else:
        assert "worker: copying 1 files of lab/tiny@aaaaaaaaaaaa, 4.2 KiB" in done.err
    filled.whole()


def test_corrupted_bytes_are_found_by_hashing_only(filled: Bench) -> None:
    bad = filled.folder(filled.worker) / SHARD
    corrupt(bad)
    damaged = bad.read_bytes()
    assert filled.kinds() == NOTHING
    assert filled.kinds("--full") == {"head": [], "worker": [(SHARD, "content")]}
    assert filled.kinds() == {"head": [], "worker": [(SHARD, "content")]}  # remembered on the node
    done = filled.invoke("resync")
    assert done.code == 0, done.err
    (aside,) = bad.resolve().parent.glob("*.bad-*")
    assert aside.read_bytes() == damaged
    filled.whole()


def test_corrupted_bytes_in_a_shared_blob_spare_the_store(bench: Bench) -> None:
    """The bad payload may be used by other repositories: the repository gets a good blob of its own."""
    bench.fill(bench.head)
    bench.fill(bench.worker, shared=True)
    bad = bench.folder(bench.worker) / SHARD
    payload = bad.resolve()
    payload.chmod(0o644)
    corrupt(bad)
    damaged = payload.read_bytes()
    assert bench.kinds("--full")["worker"] == [(SHARD, "content")]
    assert bench.invoke("resync").code == 0
    assert payload.read_bytes() == damaged
    bench.whole()


def test_a_damaged_small_file_is_found_without_hashing(filled: Bench) -> None:
    (filled.folder(filled.worker) / "tokenizer.json").resolve().write_bytes(b'{"version": "9.9"}')
    (finding,) = filled.verified()["worker"]["findings"]
    assert (finding["path"], finding["kind"]) == ("tokenizer.json", "content")
    assert filled.invoke("resync").code == 0
    filled.whole()


def test_a_damaged_head_is_not_copied_and_says_how_it_is_mended(filled: Bench) -> None:
    shutil.rmtree(filled.folder(filled.worker))
    cut(filled.folder(filled.head) / SHARD, 3000)
    done = filled.invoke("resync")
    assert done.code == 1
    assert "error: head: lab/tiny@aaaaaaaaaaaa is not complete, so nothing is copied from here" in done.err
    assert f"{SHARD} is truncated (expected 4256, found 3000)" in done.err
    assert "try: invoke download" in done.err
    assert not filled.folder(filled.worker).exists()


def test_other_revision_on_one_node_is_left_alone(bench: Bench) -> None:
    bench.fill(bench.head)
    other = bench.fill(bench.worker, revision=snapshot.OTHER_REVISION)
    shutil.rmtree(other.parents[1] / "refs", ignore_errors=True)
    entry = bench.verified()["worker"]
    assert (entry["state"], entry["others"]) == ("absent", [snapshot.OTHER_REVISION])
    assert f"is not on this node (found other revisions: {snapshot.OTHER_REVISION})" in entry["findings"][0]["text"]
    done = bench.invoke("resync")
    assert done.code == 0, done.err
    assert "worker: 7 files of lab/tiny@aaaaaaaaaaaa were there and are linked again" in done.err  # the same blobs
    bench.whole()
    assert sorted(path.name for path in other.parent.iterdir()) == [snapshot.REVISION, snapshot.OTHER_REVISION]


def test_two_snapshots_only_the_pinned_one_is_judged(filled: Bench) -> None:
    other = filled.folder(filled.worker, snapshot.OTHER_REVISION)
    other.mkdir()
    (other / "config.json").write_text("broken")
    (filled.folder(filled.worker).parents[1] / "refs").mkdir()
    (filled.folder(filled.worker).parents[1] / "refs/main").write_text(snapshot.OTHER_REVISION)
    shown = filled.invoke("verify")
    assert shown.code == 0, shown.out
    assert f"worker: note: the cache also holds {snapshot.OTHER_REVISION}; only {snapshot.REVISION} is served" in shown.out
    assert (other / "config.json").read_text() == "broken"


def test_leftovers_of_a_cut_download_are_named_and_kept(filled: Bench) -> None:
    left = filled.folder(filled.worker).parents[1] / "blobs" / "abc.1234.incomplete"
    left.write_bytes(bytes(2048))
    shown = filled.invoke("verify")
    assert (shown.code, "worker: note: 1 unfinished or set-aside files, 2.0 KiB, such as" in shown.out) == (0, True)
    assert filled.invoke("resync").code == 0
    assert left.read_bytes() == bytes(2048)


def test_a_file_of_the_user_is_neither_judged_nor_deleted(filled: Bench) -> None:
    mine = filled.folder(filled.worker) / "my-notes.md"
    mine.write_text("keep")
    assert filled.kinds() == NOTHING
    (filled.folder(filled.worker) / SHARD).unlink()
    assert filled.invoke("resync").code == 0
    assert mine.read_text() == "keep"


def test_an_index_that_lists_other_tensors(filled: Bench) -> None:
    index = filled.folder(filled.worker) / "model.safetensors.index.json"
    text = index.read_text().replace("layer.1.b", "layer.1.c")
    index.unlink()
    index.write_text(text)  # in place of the link, by hand
    kinds = filled.kinds()["worker"]
    assert ("model.safetensors.index.json", "content") in kinds
    assert (SHARD, "tensors") in kinds
    assert filled.invoke("resync").code == 0
    assert [path.name for path in filled.folder(filled.worker).glob("*.bad-*")] != []
    assert filled.content(filled.worker).items() >= filled.files.items()
    assert filled.kinds("--full") == NOTHING


def test_a_manifest_of_another_revision_is_not_used(filled: Bench, tmp_path: Path) -> None:
    assert filled.kinds("--full") == NOTHING
    (path,) = (tmp_path / "spark-lab/manifests").glob("*.json")
    assert path.name == f"lab--tiny@{snapshot.REVISION}.json"
    path.write_text(path.read_text().replace('"created_unix_s": ', '"created_unix_s": 1'))
    damaged = filled.invoke("verify")
    assert (damaged.code, "is not used: its content does not match its own sha256" in damaged.err) == (0, True)
    other = filled.invoke("verify", MODEL_REVISION=snapshot.OTHER_REVISION)
    assert (other.code, "absent" in other.out) == (1, True)


def test_a_node_out_of_reach_is_a_row_of_the_table(filled: Bench) -> None:
    done = filled.invoke("verify", WORKER_IP="10.77.0.9", WORKER_SSH="root@10.77.0.9")
    assert (done.code, "unreachable" in done.out, "complete" in done.out) == (1, True, True)
    assert filled.invoke("resync", WORKER_IP="10.77.0.9", WORKER_SSH="root@10.77.0.9").code == 1


def test_sha256_on_arrival(bench: Bench) -> None:
    bench.fill(bench.head)
    done = bench.invoke("resync", SYNC_VERIFY="sha256", SYNC_STREAMS="2")
    assert done.code == 0, done.err
    bench.whole()


def test_a_plain_folder_is_copied_to_the_same_path(bench: Bench) -> None:
    folder = bench.head.path("/root/plain")
    for name, content in bench.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    try:
        done = bench.invoke("resync", MODEL="/root/plain")
        assert done.code == 0, done.err
        there = bench.worker.path("/root/plain")
        assert {str(p.relative_to(there)): p.read_bytes() for p in there.rglob("*") if p.is_file()} == dict(bench.files)
        assert (there / SHARD).is_symlink() is False
    finally:
        for host in bench.bed.hosts:
            shutil.rmtree(host.path("/root/plain"), ignore_errors=True)


def test_both_homes_by_default_are_the_nodes_own(bench: Bench) -> None:
    done = bench.invoke("verify", HEAD_HF_HOME="~/.cache/hf-x", WORKER_HF_HOME="~/.cache/hf-y")
    assert "/root/.cache/hf-x/hub/models--lab--tiny" in done.out
    assert "/root/.cache/hf-y/hub/models--lab--tiny" in done.out
    assert HEAD_HOME not in done.out
