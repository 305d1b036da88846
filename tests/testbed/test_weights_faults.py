"""Copies that break on the way: a cut link, full and small disks, interrupted commands. Nothing is lost, and the next run goes on."""

import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import snapshot
from tests.testbed import faults, twin
from tests.testbed.hosts import Testbed
from tests.testbed.shell import wait_until
from tests.testbed.twin import Done, User
from tests.testbed.weights import HEAD_HOME, KEPT, NOTHING, SHARD, WORKER_HOME, Bench

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

SHARD_BYTES = 8 << 20
PLACES = {"HEAD_HF_HOME": HEAD_HOME, "WORKER_HF_HOME": WORKER_HOME, "MODEL": snapshot.REPO, "MODEL_REVISION": snapshot.REVISION}


@pytest.fixture
def large(testbed: Testbed, tmp_path: Path) -> Iterator[Bench]:
    """The head holds three shards of 8 MiB, the worker nothing."""
    made = Bench(testbed, User.at(tmp_path), snapshot.model_files(shard_bytes=SHARD_BYTES))
    made.clear()
    made.fill(made.head)
    yield made
    made.clear()


def staged(bench: Bench, home: str = WORKER_HOME) -> int:
    """Bytes that have arrived on the worker and have no final name yet."""
    found = bench.worker.attempt("find", f"{home}/hub/models--lab--tiny/{KEPT}", "-type", "f", "-printf", "%s\\n")
    return sum(map(int, found.stdout.split()))


def final_names(bench: Bench, home: str = WORKER_HOME) -> list[str]:
    found = bench.worker.run("find", f"{home}/hub/models--lab--tiny", "-not", "-type", "d", "-not", "-path", f"*{KEPT}*")
    return found.split()


def broken_copy(bench: Bench, act: Callable[[], None], **settings: str) -> Done:
    """A resync during which `act` happens, once some bytes have arrived."""
    begin = time.monotonic()
    with bench.user.begin("resync", **{**PLACES, **settings}) as process:
        assert wait_until(lambda: staged(bench, settings.get("WORKER_HF_HOME", WORKER_HOME)) > 3 << 20, 60, every_s=0.02)
        act()
        if process.poll() is not None:
            pytest.fail("the copy was over before it could break")
        return twin.finish(process, begin)


def sent(done: Done) -> float:
    """MiB that went over the wire, as the command says."""
    found = re.search(r"as on the head, ([\d.]+) MiB sent", done.err)
    assert found, done.err
    return float(found[1])


def test_a_cut_link_and_the_second_run_sends_the_rest_only(large: Bench) -> None:
    before = 0
    with faults.rate_limit(large.worker, 40):
        begin = time.monotonic()
        with large.user.begin("resync", **PLACES) as process:
            assert wait_until(lambda: staged(large) > 5 << 20, 60, every_s=0.02)
            with faults.link_down(large.worker):
                done = twin.finish(process, begin)
                before = staged(large)
    assert done.code == 1
    assert "error: " in done.err
    assert "worker: the copy from the head failed: " in done.err
    assert "invoke resync goes on where it stopped" in done.err or "ssh from the head to the worker failed" in done.err
    assert final_names(large) == []
    large.worker.path(twin.LOCK).unlink()  # it could not be given back; it would end by itself in two minutes
    again = large.invoke("resync")
    assert again.code == 0, again.err
    assert " of it from an earlier copy" in again.err
    total = sum(map(len, large.files.values()))
    assert before > 5 << 20
    assert sent(again) == pytest.approx((total - before) / 2**20, abs=0.7)  # what was on its way still arrives
    large.whole()


def test_ctrl_c_ends_the_streams_on_the_head(large: Bench) -> None:
    with faults.rate_limit(large.worker, 40):
        begin = time.monotonic()
        with large.user.begin("resync", **PLACES) as process:
            assert wait_until(lambda: staged(large) > 3 << 20, 60, every_s=0.02)
            process.send_signal(signal.SIGINT)
            done = twin.finish(process, begin)
    assert (done.code, done.err.endswith("interrupted\n")) == (1, True)
    assert wait_until(lambda: not twin.processes(large.head, "rsync"), 10)
    assert final_names(large) == []
    again = large.invoke("resync")
    assert again.code == 0, again.err
    assert " of it from an earlier copy" in again.err
    large.whole()


def test_a_launcher_that_was_killed_leaves_nothing_in_the_way(large: Bench) -> None:
    with faults.rate_limit(large.worker, 40):
        begin = time.monotonic()
        with large.user.begin("resync", **PLACES) as process:
            assert wait_until(lambda: staged(large) > 3 << 20, 60, every_s=0.02)
            process.kill()
            twin.finish(process, begin)
    for host in large.bed.hosts:
        host.path(twin.LOCK).unlink(missing_ok=True)  # it would end by itself in two minutes
    again = large.invoke("resync")
    assert again.code == 0, again.err
    large.whole()


def test_a_disk_too_small_is_found_before_the_copy(large: Bench) -> None:
    with faults.small_disk(large.worker, "/root/small", mib=64):
        done = large.invoke("resync", WORKER_HF_HOME="/root/small/hf")
        assert done.code == 1
        # 24 MiB to come and 256 MiB spare, in 64 MiB
        assert re.search(r"worker: 21\d\.\d MiB \(\d+ bytes\) more must be free for lab/tiny@aaaaaaaaaaaa at /root/small/hf/hub/", done.err)
        assert ": 24.0 MiB are to come" in done.err
        assert "copying" not in done.err


def test_a_disk_that_fills_up_meanwhile(large: Bench) -> None:
    home = "/root/small/hf"
    with faults.small_disk(large.worker, "/root/small", mib=300):

        def fill() -> None:
            large.worker.attempt("dd", "if=/dev/zero", "of=/root/small/filler", "bs=1M")

        with faults.rate_limit(large.worker, 40):
            done = broken_copy(large, fill, WORKER_HF_HOME=home)
        assert done.code == 1
        assert "worker: the copy from the head failed: a file could not be written there" in done.err
        assert "No space left on device" in done.err
        large.worker.run("rm", "/root/small/filler")
        kinds = large.kinds(WORKER_HF_HOME=home)["worker"]
        assert {kind for _, kind in kinds} == {"missing"}  # what arrived whole is in place, and nothing else
        assert SHARD in dict(kinds)
        again = large.invoke("resync", WORKER_HF_HOME=home)
        assert again.code == 0, again.err
        assert large.kinds("--full", WORKER_HF_HOME=home) == NOTHING


def test_bytes_that_were_damaged_in_the_staging_folder_never_arrive(large: Bench) -> None:
    """What a cut copy left is the beginning of the file, or it is sent again."""
    kept = large.worker.path(WORKER_HOME) / "hub/models--lab--tiny" / KEPT / snapshot.REVISION
    kept.mkdir(parents=True)
    (kept / SHARD).write_bytes(bytes(4 << 20))
    done = large.invoke("resync")
    assert done.code == 0, done.err
    large.whole()


def test_one_worker_of_a_repository_shared_by_two_names(large: Bench) -> None:
    """Two files of the same content are one blob: copied once, linked twice."""
    folder = large.folder(large.head)
    (folder / "copy.safetensors").symlink_to((folder / SHARD).readlink())
    done = large.invoke("resync")
    assert done.code == 0, done.err
    worker = large.folder(large.worker)
    assert (worker / "copy.safetensors").resolve() == (worker / SHARD).resolve()
    assert large.kinds("--full") == NOTHING


# --- one copy on the head, mounted by the worker (a read-only bind mount stands for NFS: the mount's own options are tested without) ---


def test_workers_that_mount_the_heads_cache(large: Bench) -> None:
    nfs = {"NFS_SHARE": "1"}
    absent = large.invoke("resync", **nfs)
    assert absent.code == 1
    assert "error: worker: the head's weights are not mounted as they must be (NFS_SHARE=1)" in absent.err
    assert f"on the head: echo '{HEAD_HOME} 10.77.0.2(ro,no_subtree_check,fsid=77)' >> /etc/exports; exportfs -ra" in absent.err
    assert f"10.77.0.1:{HEAD_HOME} {WORKER_HOME}" in absent.err
    large.worker.run("mkdir", "-p", WORKER_HOME)
    large.worker.run("mount", "--bind", str(large.head.path(HEAD_HOME)), WORKER_HOME)
    try:
        writable = large.invoke("resync", **nfs)
        assert (writable.code, f"{WORKER_HOME} is writable (expected a read-only mount" in writable.err) == (1, True)
        large.worker.run("mount", "-o", "remount,bind,ro", WORKER_HOME)
        done = large.invoke("resync", **nfs)
        assert done.code == 0, done.err
        assert "worker: weights complete, mounted read-only" in done.err
        assert large.kinds(**nfs) == NOTHING
        copied = large.invoke("resync")
        assert (copied.code, "worker: weights complete, as on the head" in copied.err) == (0, True)
    finally:
        large.worker.run("umount", WORKER_HOME)
        shutil.rmtree(large.worker.path(WORKER_HOME), ignore_errors=True)
