"""The pure parts: findings, manifests, rsync's words, exit codes and progress, the demands on a mount."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.errors import LaunchError
from cluster.fields import NodeSettings
from cluster.ranks import ranks
from cluster.weights import held, manifest, nfs, rsync
from cluster.weights.held import File, Finding, Held
from cluster.weights.hub_errors import explain
from cluster.weights.progress import Meter, gib
from cluster.weights.snapshots import Snapshot, snapshots
from tests.cluster.plans import effective

SHA = "5" * 64
SNAPSHOT = Snapshot("model", "lab/tiny", "a" * 40)
FILES = {"config.json": File(20, None, "c" * 64, None), "model.safetensors": File(1000, SHA, "d" * 64, None)}


def at(node: str = "worker", files: Mapping[str, File] = FILES, **changed: Any) -> Held:
    given: dict[str, Any] = {"exists": True, "problems": (), "others": (), "leftovers": (), "mount": {}}
    return Held(node=node, snapshot=SNAPSHOT, folder="/hf/x", files=files, **{**given, **changed})


def said(there: Held, known: manifest.Manifest | None = None, head: Held | None = None) -> list[str]:
    return [each.text() for each in held.findings(there, known, head, "invoke resync")]


def changed(name: str, **values: Any) -> dict[str, File]:
    return {**FILES, name: dataclasses.replace(FILES[name], **values)}


KNOWN = manifest.new(SNAPSHOT, "hub", {"config.json": manifest.Entry(20, "c" * 64), "model.safetensors": manifest.Entry(1000, SHA)})


def test_nothing_is_wrong() -> None:
    assert said(at(), KNOWN, at("head")) == []
    assert said(at(files={**FILES, "mine.txt": File(1, None, None, None)}), KNOWN, at("head")) == []


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"config.json": FILES["config.json"]}, "model.safetensors is missing (expected 1000 bytes)"),
        (changed("model.safetensors", size=999), "model.safetensors is truncated (expected 1000, found 999)"),
        (changed("model.safetensors", size=1001), "model.safetensors is too long (expected 1000, found 1001)"),
        (changed("model.safetensors", sha256="6" * 64), f"model.safetensors has other content (expected sha256 {SHA}, found {'6' * 64})"),
        (changed("config.json", digest="e" * 64), f"config.json has other content (expected sha256 {'c' * 64}, found {'e' * 64})"),
    ],
)
def test_against_the_manifest(files: dict[str, File], text: str) -> None:
    assert said(at(files=files), KNOWN) == [text]


def test_against_the_name_of_its_blob() -> None:
    """Without a manifest, too: the cache calls an LFS file by its sha256."""
    text = f"model.safetensors has other content (expected sha256 {SHA}, found {'6' * 64})"
    assert said(at(files=changed("model.safetensors", sha256="6" * 64))) == [text]
    assert said(at(files=changed("model.safetensors", sha256=SHA))) == []
    assert said(at(files=changed("model.safetensors", sha256="6" * 64, blob="a-name-of-somebody"))) == []


def test_against_the_head() -> None:
    other = changed("model.safetensors", digest="0" * 64)
    text = f"model.safetensors has not the right safetensors header (expected {'d' * 64}, found {'0' * 64})"
    assert said(at(files=other), KNOWN, at("head")) == [text]
    extra = at("head", {**FILES, "readme.md": File(5, None, None, None)})
    assert said(at(), None, extra) == ["readme.md is missing (expected 5 bytes)"]
    assert said(at(), KNOWN, extra) == []  # what the head has beyond the manifest is its own


def test_one_finding_for_a_file() -> None:
    wrong = ({"path": "model.safetensors", "kind": "short", "expected": 1000, "actual": 999},)
    found = held.findings(at(files=changed("model.safetensors", size=999), problems=wrong), KNOWN, at("head"), "invoke resync")
    assert [(each.path, each.kind) for each in found] == [("model.safetensors", "short")]


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "complete"),
        (["absent"], "absent"),
        (["missing", "dangling"], "incomplete"),
        (["missing", "short"], "damaged"),
        (["content"], "damaged"),
    ],
)
def test_states(kinds: list[str], state: str) -> None:
    assert held.state_of([Finding("worker", str(n), kind, None, None, "") for n, kind in enumerate(kinds)]) == state


# --- manifests ---


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert manifest.load(SNAPSHOT) == (None, "")
    path = manifest.save(SNAPSHOT, KNOWN)
    assert path == tmp_path / "spark-lab/manifests" / f"lab--tiny@{'a' * 40}.json"
    assert manifest.load(SNAPSHOT) == (KNOWN, "")
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert set(json.loads(path.read_text())) == {"repo", "revision", "source", "exclude", "created_unix_s", "files", "sha256"}


@pytest.mark.parametrize("damage", ["cut", "one digit", "no JSON", "a list", "no sha256"])
def test_a_damaged_manifest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = manifest.save(SNAPSHOT, KNOWN)
    text = path.read_text()
    body = {name: value for name, value in json.loads(text).items() if name != "sha256"}
    ways = {"cut": text[:100], "one digit": text.replace("1000", "1001"), "no JSON": "x", "a list": "[]", "no sha256": json.dumps(body)}
    path.write_text(ways[damage])
    found, note = manifest.load(SNAPSHOT)
    assert (found, note.startswith(f"the manifest {path} is not used: ")) == (None, True)


def test_a_manifest_of_another_revision_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = manifest.save(SNAPSHOT, KNOWN)
    other = dataclasses.replace(SNAPSHOT, revision="b" * 40)
    path.rename(manifest.path_of(other))
    found, note = manifest.load(other)
    assert found is None
    assert f"it is of lab/tiny@{'a' * 40}, wanted is lab/tiny@{'b' * 40}" in note


def test_a_state_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match="cannot write the manifest"):
        manifest.save(SNAPSHOT, KNOWN)


def test_which_snapshots_a_kit_serves() -> None:
    assert [(s.role, s.repo) for s in snapshots(effective("spark2"))] == [
        ("model", "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold"),
        ("drafter", "incoai/GLM-5.3-Flash-DFlash2"),
    ]
    assert [s.role for s in snapshots(effective("spark2", SPEC_METHOD="mtp"))] == ["model"]
    assert snapshots(effective("local")) == ()
    assert [s.is_folder for s in snapshots(effective("twin"))] == [True]


# --- rsync ---


def test_the_words_of_a_stream() -> None:
    node = NodeSettings(ip="10.0.0.2", ssh="ada@spark-b:2222", hf_home="~/x")
    words = rsync.argv("/hf/snap", rsync.Target.of(node), "/there/staging", "/home/me/ssh config")
    assert words[0] == "rsync"
    assert words[-2:] == ("/hf/snap/", "ada@10.0.0.2:/there/staging/")
    (shell,) = [word for word in words if word.startswith("--rsh=")]
    assert shell.startswith("--rsh=ssh -F '/home/me/ssh config' -p 2222 -o BatchMode=yes -o StrictHostKeyChecking=yes ")
    assert {"--append-verify", "--copy-links", "--protect-args", "--from0"} <= set(words)
    assert not {"--delete", "--inplace", "--links", "--archive", "-a"} & set(words)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"ip": "10.0.0.2"}, "10.0.0.2:/s/"),
        ({"ip": "10.0.0.2", "user": "ada", "ssh": "bob@h"}, "ada@10.0.0.2:/s/"),
        ({"ip": "fd00::2"}, "[fd00::2]:/s/"),
        ({"ssh": "bob@alias"}, "bob@alias:/s/"),
    ],
)
def test_where_a_stream_goes(settings: dict[str, str], place: str) -> None:
    assert rsync.Target.of(NodeSettings(**cast(Any, settings))).place("/s") == place


def test_files_are_spread_by_bytes() -> None:
    sizes = {"a": 5, "b": 4, "c": 3, "d": 2, "e": 1}
    portions = rsync.spread(sizes, 2)
    assert sorted(name for names in portions for name in names) == ["a", "b", "c", "d", "e"]
    assert sorted(sum(sizes[name] for name in names) for names in portions) == [7, 8]
    assert rsync.spread({"a": 1}, 4) == [["a"]]
    assert rsync.spread({}, 4) == []


def test_progress_and_statistics_of_rsync() -> None:
    """Lines as rsync 3.5 prints them."""
    lines = ["         32,768   0%".replace(",", ""), "        8388880  33%   11.04MB/s    0:00:01 (xfr#1, to-chk=2/3)", ""]
    assert rsync.done_bytes(lines) == 8388880
    assert rsync.done_bytes(["building file list ... done"]) == 0
    assert rsync.sent_bytes(["Literal data: 25166304 bytes", "Matched data: 0 bytes"]) == 25166304
    assert rsync.sent_bytes(lines) is None
    noise = [*lines, "Number of files: 3", "Total bytes sent: 12", "rsync error: error in file IO (code 11) at receiver.c(1)"]
    assert rsync.errors(noise) == ["rsync error: error in file IO (code 11) at receiver.c(1)"]
    joined = "        3276800  39%    4.17MB/s    0:00:01 rsync: [receiver] write failed on x: No space left on device (28)"
    assert rsync.errors([joined]) == ["rsync: [receiver] write failed on x: No space left on device (28)"]


@pytest.mark.parametrize("code", [11, 12, 20, 23, 24, 30, 127, 255, None, 99])
def test_every_exit_code_is_a_sentence_with_a_hint(code: int | None) -> None:
    what, hint = rsync.sentence(code)
    assert len(what) > 10
    assert len(hint) > 10
    assert (what == "rsync ended with 99") is (code == 99)


# --- progress ---


def test_rate_and_time_left() -> None:
    now = [0.0]
    meter = Meter(10 << 30, clock=lambda: now[0])
    assert meter.at(0) == "0 B of 10.0 GiB (0 %), 0 B/s"
    now[0] = 10.0
    assert meter.at(1 << 30) == "1.0 GiB of 10.0 GiB (10 %), 102.4 MiB/s, 1 min 30 s left"
    now[0] = 15.0
    assert meter.at(10 << 30).startswith("10.0 GiB of 10.0 GiB (100 %), ")
    assert "left" not in meter.at(10 << 30)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    meter = Meter(1 << 40, clock=lambda: now[0])
    for second in range(101):  # a stall of 60 s, then 1 MiB each second
        now[0] = float(second)
        text = meter.at(max(0, second - 60) << 20)
    assert ", 1.0 MiB/s, " in text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (164 << 30, "164.0 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert gib(count) == text


# --- the mount of NFS_SHARE=1 ---

GOOD = {"point": "/hf", "type": "nfs4", "source": "10.0.0.1:/hf", "options": ["ro", "vers=4.2", "nconnect=8", "addr=10.0.0.1"]}


def mounted(**changes: Any) -> list[str]:
    e = effective("spark2", NFS_SHARE="1", SPEC_METHOD="none")
    head, worker = ranks(e)
    hub = "/hf/hub/models--x/snapshots/y"
    model = Snapshot("model", "lab/tiny", "a" * 40)
    there = dataclasses.replace(at(mount={**GOOD, **changes}), folder=hub)
    view = SimpleNamespace(
        ranks={"head": head, "worker": worker},
        cluster=SimpleNamespace(head="head"),
        snapshots=(model,),
        held={"head": 1, "worker": 1},
        of=lambda role, _: dataclasses.replace(there, node=role),
    )
    found = nfs.findings(cast(Any, view), worker, there)
    assert nfs.findings(cast(Any, view), head, there) == []
    assert all("mount -t nfs -o ro,nfsvers=4.2,nconnect=8" in each.repair for each in found)
    return [each.text() for each in found]


def test_demands_on_a_mount() -> None:
    assert mounted() == []
    rw = ["rw", *GOOD["options"][1:]]
    assert mounted(options=rw) == ["/hf is writable (expected a read-only mount, found nfs4 from 10.0.0.1:/hf, read-write)"]
    slow = ["ro", "vers=3", "addr=192.168.1.5"]
    assert mounted(options=slow) == [
        "/hf is mounted from another address than the fabric's (expected 10.0.0.1, found 192.168.1.5)",
        "/hf is not mounted by NFS 4 (expected NFS 4, found 3)",
        "/hf uses one connection (expected nconnect=8, found 1)",
    ]
    assert mounted(type="ext4", options=["ro"]) == []  # another shared file system: read-only is all that is asked


# --- failures of the Hub that the server on this machine cannot play ---


def test_a_full_disk_of_the_cache() -> None:
    why = explain(OSError(28, "No space left on device"), "lab/tiny", False)
    assert (why.what, why.other_repository) == ("the disk of the cache is full", False)
    why = explain(PermissionError(13, "Permission denied", "/hf/hub"), "lab/tiny", False)
    assert re.match("the cache cannot be written: .*'/hf/hub'", why.what)


def test_an_unknown_failure_is_told_as_it_is() -> None:
    why = explain(ValueError("first line\nsecond line"), "lab/tiny", False)
    assert why.what == "the download of lab/tiny failed: first line"
