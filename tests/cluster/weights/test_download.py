"""Downloads with the real Hugging Face client from a Hub on this machine: what arrives, what is refused, and how each failure is told."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support import ROOT, command_lines, default_interrupt, eventually
from tests.cluster.weights.person import TOKEN, Done, Head
from tests.fakes.hub import Hub
from tests.fakes.snapshot import OTHER_REVISION, REPO, REVISION, blob_name, model_files

SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    with Hub(model_files(shard_bytes=64 << 10)).serving() as hub:
        yield Head(tmp_path, hub)


def refused(done: Done, *words: str) -> None:
    assert done.code == 1, done.err
    assert [word for word in words if word not in done.err] == [], done.err


def test_a_download_is_whole_proven_and_written_down(head: Head) -> None:
    done = head.download()
    assert done.code == 0, done.err
    assert head.content() == dict(head.hub.files)
    assert f"cache {head.folder}/.cache/huggingface (HEAD_HF_HOME, default)" in done.err
    assert "lab/tiny@aaaaaaaaaaaa: downloading 7 of 7 files, 192.9 KiB" in done.err
    assert "lab/tiny@aaaaaaaaaaaa: complete, 7 files, 192.9 KiB" in done.err
    manifest = head.manifest()
    assert (manifest["repo"], manifest["revision"], manifest["source"]) == (REPO, REVISION, "hub")
    files = manifest["files"]
    assert isinstance(files, dict)
    assert files[SHARD] == {"size": len(head.hub.files[SHARD]), "sha256": blob_name(SHARD, head.hub.files[SHARD])}
    assert all(len(entry["sha256"]) == 64 for entry in files.values())


def test_the_second_time_the_hub_is_not_asked(head: Head) -> None:
    assert head.download().code == 0
    head.hub.asked.clear()
    done = head.download()
    assert (done.code, "complete, 7 files" in done.err, "the Hub was not asked" in done.err) == (0, True, True)
    assert head.hub.asked == []


def test_hf_home_is_honoured_and_its_source_is_shown(head: Head) -> None:
    done = head.download(HF_HOME=str(head.folder / "elsewhere"))
    assert done.code == 0, done.err
    assert f"cache {head.folder}/elsewhere (HEAD_HF_HOME, environment)" in done.err
    assert (head.folder / "elsewhere/hub/models--lab--tiny/snapshots" / REVISION / SHARD).is_file()
    assert not head.snapshot.exists()


def test_only_what_is_missing_is_downloaded(head: Head) -> None:
    assert head.download().code == 0
    (head.snapshot / SHARD).resolve().unlink()
    (head.snapshot / SHARD).unlink()
    head.hub.asked.clear()
    done = head.download()
    assert done.code == 0, done.err
    assert "downloading 1 of 7 files" in done.err
    assert [path.rpartition("/")[2] for path in head.hub.paths() if "/resolve/" in path] == [SHARD]
    assert head.content() == dict(head.hub.files)


def test_a_body_that_is_cut_off_is_resumed(head: Head) -> None:
    """From where the client's buffer of 10 MiB was last written."""
    head.hub.files = model_files(shards=1, shard_bytes=16 << 20)
    head.hub.cut["model-00001-of-00001.safetensors"] = 12_000_000
    done = head.download()
    assert done.code == 0, done.err
    ranges = [headers.get("Range") for verb, path, headers in head.hub.asked if verb == "GET" and path.endswith(".safetensors")]
    assert ranges == [None, "bytes=10485760-"]
    assert head.content() == dict(head.hub.files)


@pytest.mark.parametrize("damage", ["short", "oversize", "shared"])
def test_a_bad_file_is_set_aside_and_fetched_again(head: Head, damage: str) -> None:
    """The client by itself takes every file that is there for good."""
    assert head.download().code == 0
    blob = (head.snapshot / SHARD).resolve()
    if damage == "shared":  # the repository's blob is a link into the store that all repositories share
        payload = head.snapshot.parents[2] / "blobs/ab" / ("ab" * 32)
        payload.parent.mkdir(parents=True)
        blob.rename(payload)
        blob.symlink_to(os.path.relpath(payload, blob.parent))
        blob = payload
    bad = blob.read_bytes() + bytes(10) if damage == "oversize" else blob.read_bytes()[:5000]
    blob.write_bytes(bad)
    done = head.download()
    assert done.code == 0, done.err
    (aside,) = blob.parent.glob("*.bad-*")
    assert aside.read_bytes() == bad
    assert f"{SHARD} is bad: kept as {aside}, and downloaded again" in done.err
    assert head.content() == dict(head.hub.files)


def test_exclude_globs(head: Head) -> None:
    done = head.download(HF_DOWNLOAD_EXCLUDE="extra/*, *.md")
    assert done.code == 0, done.err
    assert set(head.content()) == set(head.hub.files) - {"extra/notes.txt"}
    assert head.manifest()["exclude"] == ["extra/*", "*.md"]
    more = head.download()
    assert (more.code, "downloading 1 of 7 files" in more.err) == (0, True)


def test_a_leftover_of_a_killed_download_is_no_harm(head: Head) -> None:
    blobs = head.snapshot.parents[1] / "blobs"
    blobs.mkdir(parents=True)
    left = blobs / f"{blob_name(SHARD, head.hub.files[SHARD])}.12345678.incomplete"
    left.write_bytes(bytes(100))
    assert head.download().code == 0
    assert head.content() == dict(head.hub.files)
    assert left.read_bytes() == bytes(100)


def test_no_room_is_found_before_anything_is_fetched(head: Head) -> None:
    head.hub.files = {**head.hub.files, "huge.safetensors": b""}
    size = 1 << 60
    head.hub.tree = lambda: [  # type: ignore[method-assign]
        *Hub(model_files()).tree(),
        {
            "type": "file",
            "path": "huge.safetensors",
            "size": size,
            "oid": "0" * 40,
            "lfs": {"oid": "1" * 64, "size": size, "pointerSize": 1},
        },
    ]
    done = head.download()
    refused(done, " GiB (", f" bytes) more must be free at {head.folder}: 1073741824.0 GiB are to come", "try: df -h")
    assert not [path for path in head.hub.paths() if "/resolve/" in path]


def test_ctrl_c_ends_the_download_at_once_and_what_is_whole_is_kept(head: Head) -> None:
    """The client's threads go on by themselves, and would keep the command from ending."""
    head.hub.files = model_files(shards=1, shard_bytes=64 << 20)
    head.hub.slow_s = 0.5
    command, env = head.command()
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupt)
    blobs = head.snapshot.parents[1] / "blobs"
    small = [name for name, content in head.hub.files.items() if len(content) < 1 << 20]
    eventually(lambda: all((head.snapshot / name).exists() for name in small) and [*blobs.glob("*.incomplete")], within_s=30)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in err) == (1, False), err
    assert time.monotonic() - begin < 15
    assert list(blobs.glob("*.incomplete")) == []
    assert "cluster.weights.hub" not in command_lines()
    head.hub.slow_s = 0
    again = head.download()
    assert (again.code, "downloading 1 of 5 files" in again.err) == (0, True)


# --- refusals, each as a sentence with a hint ---


def test_rate_limit(head: Head) -> None:
    head.hub.status, head.hub.headers = 429, {"Retry-After": "0"}
    refused(head.download(), "the Hub refuses more requests for now (429); it asks to wait 0 s", "try: wait and run it again", "HF_TOKEN=")


def test_a_rate_limit_that_ends_in_time_is_waited_for(head: Head) -> None:
    head.hub.status, head.hub.headers, head.hub.once = 429, {"Retry-After": "0"}, 2
    assert head.download().code == 0


def test_private_repository(head: Head) -> None:
    head.hub.token = TOKEN
    refused(head.download(), "the Hub denies lab/tiny@aaaaaaaaaaaa (401)", "no token is set", "try: ", "HF_TOKEN=...")
    wrong = head.download(HF_TOKEN="hf_wrong")
    refused(wrong, "the token was not accepted")
    assert "hf_wrong" not in wrong.err
    assert head.download(HF_TOKEN=TOKEN).code == 0


def test_the_standard_token_file(head: Head) -> None:
    head.hub.token = TOKEN
    file = head.folder / ".cache/huggingface/token"
    file.parent.mkdir(parents=True)
    file.write_text(TOKEN)
    assert head.download().code == 0


def test_gated_repository(head: Head) -> None:
    head.hub.status, head.hub.code = 403, "GatedRepo"
    refused(head.download(), "lab/tiny@aaaaaaaaaaaa is gated (403)", "try: accept its terms on the Hub's page")


def test_no_such_repository_and_no_such_revision(head: Head) -> None:
    refused(head.download(MODEL="lab/other"), "lab/other@aaaaaaaaaaaa", "try: check the ")
    refused(
        head.download(MODEL_REVISION=OTHER_REVISION),
        "lab/tiny@bbbbbbbbbbbb has no such revision",
        "name a commit that its history on the Hub shows (of the served model: MODEL_REVISION)",
    )


def test_a_hub_that_fails(head: Head) -> None:
    head.hub.status = 501
    refused(head.download(), "the Hub failed (501)", "try: run it again later")


def test_no_network(head: Head) -> None:
    refused(head.download(HF_ENDPOINT="http://127.0.0.1:9"), "the Hub was not reached", "try: check the network, a proxy (HTTPS_PROXY)")


def test_offline(head: Head) -> None:
    refused(head.download(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE=1, and lab/tiny@aaaaaaaaaaaa is not complete", "is not on this node")
    assert head.hub.asked == []
    assert head.download().code == 0
    (head.folder / f"state/spark-lab/manifests/lab--tiny@{REVISION}.json").unlink()
    head.hub.asked.clear()
    done = head.download(HF_HUB_OFFLINE="1")
    assert (done.code, "complete by its own index and headers" in done.err) == (0, True)
    assert head.hub.asked == []


def test_the_fallback_is_downloaded_and_said_not_to_be_served(head: Head) -> None:
    other = {"MODEL": "lab/gone", "MODEL_FALLBACK": REPO}
    refused(head.download(**other), "MODEL_FALLBACK has no commit", "try: MODEL_FALLBACK_REVISION=")
    done = head.download(**other, MODEL_FALLBACK_REVISION=REVISION)
    assert done.code == 0, done.err
    assert f"it is served only with MODEL=lab/tiny MODEL_REVISION={REVISION}; MODEL still names lab/gone" in done.err
    assert head.content() == dict(head.hub.files)


def test_a_head_on_another_machine(head: Head) -> None:
    done = head.download(HEAD_IP="192.0.2.1")
    refused(done, "head: the head is another machine: downloads run on the head itself", "try: there, in a checkout")


def test_the_drafter_comes_with_dflash(head: Head) -> None:
    """It has no tokenizer of its own."""
    from tests.fakes.snapshot import hub_cache

    hub_cache(head.folder / ".cache/huggingface", head.hub.files)
    drafter = {"config.json": b"{}", "model.safetensors": model_files()[SHARD]}
    with Hub(drafter, repo="lab/draft", revision=OTHER_REVISION).serving() as hub:
        done = Head(head.folder, hub).download(
            SPEC_METHOD="dflash", DFLASH_MODEL="lab/draft", DFLASH_REVISION=OTHER_REVISION, HF_HUB_OFFLINE=""
        )
    assert done.code == 0, done.err
    # this Hub has the drafter only; the model lies there complete, and is not asked for in vain
    assert "lab/tiny@aaaaaaaaaaaa is complete by its own index and headers" in done.err
    assert "lab/draft@bbbbbbbbbbbb: complete, 2 files" in done.err
