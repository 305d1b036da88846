"""Small snapshots with real safetensors files, in the layouts that the Hugging Face client makes: classic and shared blobs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
from collections.abc import Mapping
from pathlib import Path

REVISION = "a" * 39 + "1"
OTHER_REVISION = "b" * 39 + "2"
REPO = "lab/tiny"
SHARDS = 3


def safetensors(tensors: Mapping[str, int], seed: int = 0) -> bytes:
    """A safetensors file: name -> bytes of an U8 tensor, filled at random."""
    header, at = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(at)


def model_files(shards: int = SHARDS, shard_bytes: int = 4096, *, tokenizer: bool = True, seed: int = 0) -> dict[str, bytes]:
    """The files of a model: config, index, `shards` shards of two tensors, tokenizer, and a file in a folder."""
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    parts = {name: {f"layer.{n}.a": shard_bytes // 2, f"layer.{n}.b": shard_bytes - shard_bytes // 2} for n, name in enumerate(names)}
    weight_map = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    files = {name: safetensors(tensors, seed * 1000 + n) for n, (name, tensors) in enumerate(parts.items())}
    index = {"metadata": {"total_size": shards * shard_bytes}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"model_type": "tiny"}'
    files["extra/notes.txt"] = b"a file in a folder"
    if tokenizer:
        files["tokenizer.json"] = b'{"version": "1.0"}'
    return files


def is_lfs(name: str) -> bool:
    return name.endswith(".safetensors")


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def blob_name(name: str, content: bytes) -> str:
    """What the cache calls the file's content: the sha256 of an LFS file, the git hash of another."""
    return hashlib.sha256(content).hexdigest() if is_lfs(name) else git_hash(content)


def hub_cache(home: Path, files: Mapping[str, bytes], *, shared: bool = False, repo: str = REPO, revision: str = REVISION) -> Path:
    """Write `files` as the client does into the cache of HF_HOME `home`; the snapshot folder.

    shared: large files lie once in hub/blobs/xx/hash, and the repository's blob is a relative link to there.
    """
    base = home / "hub" / f"models--{repo.replace('/', '--')}"
    for name, content in files.items():
        blob = base / "blobs" / blob_name(name, content)
        blob.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(blob):
            _store(home / "hub", blob, content, shared=shared and is_lfs(name))
        link = base / "snapshots" / revision / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return base / "snapshots" / revision


def _store(hub: Path, blob: Path, content: bytes, *, shared: bool) -> None:
    if not shared:
        blob.write_bytes(content)
        return
    key = hashlib.sha256(b"xet" + content).hexdigest()
    payload = hub / "blobs" / key[:2] / key
    payload.parent.mkdir(parents=True, exist_ok=True)
    (hub / "blobs" / ".huggingface-shared-blobs").write_text("1\n")
    payload.write_bytes(content)
    payload.chmod(0o444)
    payload.with_name(f"{key}.refs").write_text(f"{blob.relative_to(hub)}\n")
    blob.symlink_to(os.path.relpath(payload, blob.parent))
