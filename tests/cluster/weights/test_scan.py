"""The node agent's look at snapshots, on real files through the real transport: headers, index, digests that are remembered."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster import agent_weights
from cluster.agent_client import ask_agent
from cluster.transport import LocalTransport
from tests.fakes import snapshot

SHARD = "model-00002-of-00003.safetensors"


read_header: Any = agent_weights.read_header


class Node:
    """This machine as a node, with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.state, self.home = folder / "state", folder / "hf"

    def ask(self, action: str, **more: Any) -> dict[str, Any]:
        return ask_agent(LocalTransport(), {"action": action, "name": "the weights", "state_dir": str(self.state), **more})

    def scan(self, folder: Path, tokenizer: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("weights_scan", snapshots=[{"folder": str(folder), "tokenizer": tokenizer}])["snapshots"][0]
        return found

    def problems(self, folder: Path, tokenizer: bool = True) -> list[tuple[str, str, Any, Any]]:
        return [(p["path"], p["kind"], p["expected"], p["actual"]) for p in self.scan(folder, tokenizer)["problems"]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("shared", [False, True], ids=["classic", "shared blobs"])
def test_a_whole_snapshot(node: Node, shared: bool) -> None:
    files = snapshot.model_files()
    seen = node.scan(snapshot.hub_cache(node.home, files, shared=shared))
    assert seen["problems"] == []
    assert {name: (f["size"], f["blob"]) for name, f in seen["files"].items()} == {
        name: (len(content), snapshot.blob_name(name, content)) for name, content in files.items()
    }
    assert all(f["sha256"] is None for f in seen["files"].values())
    assert (seen["others"], seen["leftovers"]) == ([], [])


def header(tensors: Any, data: int, length: int | None = None) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


ONE = {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
# 8 bytes of length and 60 of header: ONE with 4 bytes of data is 72 long
HEADERS = {
    "right": (header(ONE, 4), None),
    "only metadata": (header({"__metadata__": {"format": "pt"}}, 0), None),
    "no byte": (b"", ("short", 8, 0)),
    "seven bytes": (b"\0" * 7, ("short", 8, 7)),
    "half a header": (header(ONE, 4)[:30], ("short", 68, 30)),
    "one byte short": (header(ONE, 3), ("short", 72, 71)),
    "one byte over": (header(ONE, 5), ("oversize", 72, 73)),
    "no JSON": (struct.pack("<Q", 4) + b"oops", ("header", None, 12)),
    "a list": (struct.pack("<Q", 2) + b"[]", ("header", None, 10)),
    "no offsets": (header({"a": {"dtype": "U8"}}, 4), ("header", None, 34)),
    "a header beyond the limit": (header(ONE, 4, 1 << 60), ("header", None, 72)),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers(tmp_path: Path, case: str) -> None:
    content, wrong = HEADERS[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    digest, names, found = read_header(str(path), len(content))
    assert found == wrong
    assert (digest is None) == (case not in ("right", "only metadata", "one byte short", "one byte over"))
    if case == "right":
        assert names == ("a",)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_no_bytes_make_the_header_reader_fail(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    _, _, wrong = read_header(str(path), len(content))
    assert wrong is None or wrong[0] in ("short", "oversize", "header")


def test_what_must_be_there(node: Node) -> None:
    folder = node.home / "plain"
    folder.mkdir(parents=True)
    missing = [("model.safetensors", "missing"), ("config.json", "missing"), ("tokenizer.json", "missing")]
    assert [row[:2] for row in node.problems(folder)] == missing
    assert [row[:2] for row in node.problems(folder, tokenizer=False)] == missing[:2]
    (folder / "model.safetensors").write_bytes(header(ONE, 4))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.model").write_bytes(b"x")
    assert node.problems(folder) == []
    (folder / "config.json").write_text("{")
    assert node.problems(folder) == [("config.json", "json", None, 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", ("index", None, None)),
        ("oops", ("json", None, 4)),
        ('{"weight_map": {"a": "../../../etc/passwd"}}', ("index", None, "../../../etc/passwd")),
        ('{"weight_map": {"a": ["x"]}}', ("index", None, None)),
    ],
)
def test_a_bad_index(node: Node, text: str, said: tuple[str, Any, Any]) -> None:
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    index = folder / "model.safetensors.index.json"
    index.unlink()
    index.write_text(text)
    assert ("model.safetensors.index.json", *said) in node.problems(folder)


def test_a_shard_that_only_the_index_knows(node: Node) -> None:
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    (folder / SHARD).unlink()
    assert node.problems(folder) == [(SHARD, "missing", None, None)]


def test_a_shard_with_other_tensors(node: Node) -> None:
    files = snapshot.model_files()
    folder = snapshot.hub_cache(node.home, {**files, SHARD: snapshot.safetensors({"layer.1.a": 2048, "other": 2048})})
    assert node.problems(folder) == [(SHARD, "tensors", 2, "1 missing, such as layer.1.b")]


def test_a_small_file_that_is_not_what_its_blob_is_called(node: Node) -> None:
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    (folder / "tokenizer.json").resolve().write_bytes(b'{"version": "9.9"}')
    named = snapshot.git_hash(b'{"version": "1.0"}')
    assert node.problems(folder) == [("tokenizer.json", "content", named, snapshot.git_hash(b'{"version": "9.9"}'))]


def test_hashes_are_remembered_until_the_file_changes(node: Node) -> None:
    files = snapshot.model_files()
    folder = snapshot.hub_cache(node.home, files)
    node.scan(folder)
    done = node.ask("weights_hash", folder=str(folder), files=[SHARD, "config.json", "nothing"])["sha256"]
    assert done == {SHARD: snapshot.blob_name(SHARD, files[SHARD]), "config.json": done["config.json"], "nothing": None}
    assert node.scan(folder)["files"][SHARD]["sha256"] == done[SHARD]
    shard = (folder / SHARD).resolve()
    os.utime(shard, ns=(time.time_ns(), time.time_ns()))
    again = node.scan(folder)["files"]
    assert (again[SHARD]["sha256"], again["config.json"]["sha256"]) == (None, done["config.json"])


def test_a_file_that_changes_while_it_is_hashed_has_no_hash(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    hash_it: Any = agent_weights.sha256_of

    def and_somebody_writes(path: str) -> str:
        found: str = hash_it(path)
        with open(path, "ab") as file:
            file.write(b"x")
        return found

    monkeypatch.setattr(agent_weights, "sha256_of", and_somebody_writes)
    ask: Any = agent_weights.weights_hash
    assert ask({"folder": str(folder), "state_dir": str(node.state), "files": [SHARD]}) == {"sha256": {SHARD: None}}


def test_an_unchanged_snapshot_is_not_opened_again(node: Node) -> None:
    """Same size, time and inode: what was found is believed, whatever the bytes are. Any change makes it look again."""
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    assert node.problems(folder) == []
    config = (folder / "config.json").resolve()
    before = config.stat()
    config.write_bytes(b"x" * before.st_size)
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert node.problems(folder) == []
    os.utime(config)
    assert [row[1] for row in node.problems(folder)] == ["json"]


def test_without_a_state_folder_it_only_takes_longer(node: Node) -> None:
    node.state.write_text("a file where the folder should be")
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    assert node.problems(folder) == []
    assert node.ask("weights_hash", folder=str(folder), files=[SHARD])["sha256"][SHARD]


def test_other_revisions_leftovers_and_a_folder_that_is_not_there(node: Node) -> None:
    folder = snapshot.hub_cache(node.home, snapshot.model_files())
    blobs = folder.parents[1] / "blobs"
    (blobs / "x.1.incomplete").write_bytes(b"123")
    (blobs / "x.bad-20261129T000000Z").write_bytes(b"12345")
    (folder / "old.safetensors.bad-20261129T000000Z").write_bytes(b"1")
    (folder.parent / snapshot.OTHER_REVISION).mkdir()
    seen = node.scan(folder)
    assert (seen["problems"], seen["others"]) == ([], [snapshot.OTHER_REVISION])
    assert [(Path(each["path"]).name, each["bytes"]) for each in seen["leftovers"]] == [
        ("x.1.incomplete", 3),
        ("x.bad-20261129T000000Z", 5),
        ("old.safetensors.bad-20261129T000000Z", 1),
    ]
    absent = node.scan(folder.with_name("c" * 40))
    assert (absent["exists"], absent["files"], absent["others"]) == (False, {}, [snapshot.REVISION, snapshot.OTHER_REVISION])
    assert absent["mount"]["point"].startswith("/")
