"""Weights on nodes that differ: the worker's login, port, home and cache are other ones; and `up`, which brings the weights itself."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import snapshot
from tests.testbed.host import public_key
from tests.testbed.hosts import Testbed
from tests.testbed.test_twin_user import HOME, UID, Site, site  # noqa: F401
from tests.testbed.twin import Done, User
from tests.testbed.weights import HEAD_HOME, SHARD

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(600)]

CACHE = f"{HOME}/models"


@pytest.fixture
def ada(site: Site, testbed: Testbed, tmp_path: Path) -> Iterator[tuple[Site, User]]:  # noqa: F811
    """The head has the snapshot, and knows the key of the worker's second sshd."""
    shutil.rmtree(site.head.path(HEAD_HOME), ignore_errors=True)
    snapshot.hub_cache(site.head.path(HEAD_HOME), snapshot.model_files(), shared=True)
    known = site.head.path("/root/.ssh/known_hosts")
    before = known.read_text()
    known.write_text(before + f"[10.77.0.2]:2222 {public_key(site.worker.root / 'ssh/host_key')}\n")
    yield site, User.at(tmp_path / "state")
    known.write_text(before)
    shutil.rmtree(site.head.path(HEAD_HOME))


def invoke(at: Site, user: User, *words: str, **settings: str) -> Done:
    model = {"MODEL": snapshot.REPO, "MODEL_REVISION": snapshot.REVISION, "HEAD_HF_HOME": HEAD_HOME, "WORKER_HF_HOME": "~/models"}
    done = user.invoke(*words, **{**at.settings, **model, **settings})
    assert "Traceback" not in done.err, done.err
    return done


def test_up_brings_the_weights_to_another_user_and_the_next_one_copies_nothing(ada: tuple[Site, User]) -> None:
    at, user = ada
    try:
        up = invoke(at, user, "up")
        assert up.code == 0, up.err
        assert "worker: copying 7 files of lab/tiny@aaaaaaaaaaaa" in up.err
        folder = at.worker.path(f"{CACHE}/hub/models--lab--tiny/snapshots/{snapshot.REVISION}")
        there = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert there == snapshot.model_files()
        assert {os.lstat(path).st_uid for path in folder.rglob("*")} == {UID}
        assert invoke(at, user, "down").code == 0
        again = invoke(at, user, "up")
        assert (again.code, "worker: weights complete, as on the head" in again.err, "copying" in again.err) == (0, True, False)
        assert invoke(at, user, "down").code == 0

        (folder / SHARD).unlink()
        skipped = invoke(at, user, "up", "--skip-sync")
        assert (skipped.code, "weights complete" in skipped.err, (folder / SHARD).exists()) == (0, False, False)
    finally:
        invoke(at, user, "down")


def test_up_without_weights_says_where_to_download(ada: tuple[Site, User]) -> None:
    at, user = ada
    other = {"MODEL_REVISION": snapshot.OTHER_REVISION}
    done = invoke(at, user, "up", **other)
    assert done.code == 1
    assert (
        "error: head: lab/tiny@bbbbbbbbbbbb is not complete, and the head is another machine: downloads run on the head itself" in done.err
    )
    assert f"is not on this node (found other revisions: {snapshot.REVISION})" in done.err
    assert "try: invoke download" in done.err
    skipped = invoke(at, user, "up", "--skip-download", **other)
    assert (skipped.code, "head: missing: " in skipped.err) == (1, True)


def test_a_cache_of_root_is_named_before_the_copy(ada: tuple[Site, User]) -> None:
    at, user = ada
    at.worker.run("mkdir", "-p", "-m", "755", "/tmp/rootcache")
    try:
        done = invoke(at, user, "resync", WORKER_HF_HOME="/tmp/rootcache")
        assert done.code == 1
        assert "cannot write to /tmp/rootcache (Permission denied); it belongs to uid 0" in done.err
        assert at.worker.run("ls", "-A", "/tmp/rootcache") == ""
    finally:
        at.worker.run("rmdir", "/tmp/rootcache")


def test_a_host_key_the_head_does_not_know(ada: tuple[Site, User]) -> None:
    at, user = ada
    known = at.head.path("/root/.ssh/known_hosts")
    known.write_text("\n".join(line for line in known.read_text().splitlines() if "10.77.0.2" not in line) + "\n")
    done = invoke(at, user, "resync")
    assert done.code == 1
    assert "worker: the copy from the head failed: ssh from the head to the worker failed" in done.err
    assert "Host key verification failed" in done.err
    assert "on the head, as the same user: ssh" in done.err
