"""Small files on every node and a look at the model, by the real agent in this machine's own python3."""

import base64
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster import place
from cluster.agent_client import ask_agent
from cluster.errors import LaunchError
from cluster.execute import Nodes
from cluster.session import Cluster
from cluster.transport import LocalTransport
from tests.cluster.plans import effective


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def cluster(**settings: str) -> Cluster:
    """Both nodes of spark2 are this machine."""
    return Cluster(effective("spark2", **settings), Nodes({role: LocalTransport(role) for role in ("head", "worker")}, sys.executable))


def test_files_come_to_every_node(home: Path) -> None:
    contents: Mapping[str, bytes] = {"a.safetensors": bytes(range(256)), "b.safetensors": b"two"}
    found = place.files(cluster(), contents)
    folder = home / ".local/state/spark-lab/spark2/files"
    assert found == {"head": str(folder), "worker": str(folder)}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert stat.S_IMODE((folder / "a.safetensors").stat().st_mode) == 0o644  # a container's user must read it
    place.files(cluster(), {"b.safetensors": b"three"})
    assert (folder / "b.safetensors").read_bytes() == b"three"
    assert (folder / "a.safetensors").exists()


def test_readable_whatever_the_umask_is(home: Path) -> None:
    before = os.umask(0o077)
    try:
        place.files(cluster(), {"a": b"1"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / ".local/state/spark-lab/spark2/files/a").stat().st_mode) == 0o644


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    (home / ".local").write_text("a file in the way")
    with pytest.raises(LaunchError, match=r"(?s)could not write small files.*cannot write into .*files: "):
        place.files(cluster(), {"a": b"1"})


def test_a_name_is_no_path(home: Path) -> None:
    request = {"action": "place_write", "name": "small files", "folder": "~/in", "files": {"../out": base64.b64encode(b"1").decode()}}
    ask_agent(LocalTransport("head"), request)
    assert [str(path.relative_to(home)) for path in home.rglob("out")] == ["in/out"]


def test_model(tmp_path: Path, home: Path) -> None:
    config = {"model_type": "outer", "text_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model-2.safetensors").write_bytes(b"12345")
    (tmp_path / "model-1.safetensors").write_bytes(b"1")
    (tmp_path / "tokenizer.json").write_text("{}")
    found = place.model(cluster(MODEL=str(tmp_path)))
    assert json.loads(found.config) == config
    assert found.text == {"hidden_size": 8}
    assert found.sizes == {"model-1.safetensors": 1, "model-2.safetensors": 5}
    (tmp_path / "config.json").write_text('{"hidden_size": 9}')
    assert place.model(cluster(MODEL=str(tmp_path))).text == {"hidden_size": 9}


def test_no_model_yet(tmp_path: Path, home: Path) -> None:
    wanted = f"head: no model in {tmp_path}/none: there is no readable config.json\ntry: invoke download"
    with pytest.raises(LaunchError, match=wanted):
        place.model(cluster(MODEL=f"{tmp_path}/none"))
