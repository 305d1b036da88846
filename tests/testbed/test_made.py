"""What the testbed makes besides hosts: the image archive, the tiny model, the vLLM environment."""

import hashlib
import io
import json
import os
import struct
import tarfile
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from tests.testbed import image, model, vllm_env

WEIGHTS_SHA256 = "40bbdae4cdf115a9d8ba908276dc72c6a66fc941ab3da0fd31fb1c6b389200e4"  # read off once, seed 0


def test_archive_is_what_docker_load_reads(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"hi\n"))
    first = image.pack(layer, tmp_path / "a.tar", "deb:1")
    assert first == image.pack(layer, tmp_path / "b.tar", "deb:1")
    with tarfile.open(tmp_path / "a.tar") as tar:
        content = {name: (tar.extractfile(name) or io.BytesIO()).read() for name in tar.getnames()}
    manifest = json.loads(content["manifest.json"])
    assert manifest == [{"Config": f"{first[7:]}.json", "RepoTags": ["deb:1"], "Layers": ["layer.tar"]}]
    digest = hashlib.sha256(content["layer.tar"]).hexdigest()
    assert json.loads(content[f"{first[7:]}.json"])["rootfs"]["diff_ids"] == [f"sha256:{digest}"]


def test_another_recipe_has_another_key() -> None:
    assert image.Recipe().key() == image.Recipe().key()
    assert image.Recipe().key() != image.Recipe(packages=("busybox-static",)).key()


def test_model_is_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    weights = (model.make(tmp_path) / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS_SHA256
    length = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8 : 8 + length])
    del header["__metadata__"]
    assert len(header) == 45
    assert header["model.layers.1.mlp.experts.3.down_proj.weight"]["shape"] == [256, 256]
    assert 8 + length + max(entry["data_offsets"][1] for entry in header.values()) == len(weights)


def test_another_seed_makes_another_model(tmp_path: Path) -> None:
    weights = (model.make(tmp_path, seed=1) / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() != WEIGHTS_SHA256


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    assert model.bfloat16(array("f", [1.0, -2.0])).hex() == "803f00c0"


def test_tokenizer_has_a_text_for_every_id() -> None:
    vocabulary = cast(dict[str, Any], model.tokenizer()["model"])["vocab"]
    assert sorted(vocabulary.values()) == list(range(512))
    assert vocabulary["<|endoftext|>"] == 0


def test_a_finished_environment_is_taken_as_it_is(tmp_path: Path) -> None:
    stamp = {"recipe": vllm_env.recipe_hash(), "seconds": {"torch": 16.2}}
    (tmp_path / "spark-testbed.json").write_text(json.dumps(stamp))
    env = vllm_env.ensure(tmp_path)
    assert (env.vllm, env.seconds) == (tmp_path / "bin/vllm", {"torch": 16.2})
    assert os.listdir(tmp_path) == ["spark-testbed.json"]


def test_two_calls_at_once_make_the_environment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make(folder: Path, stamp: Path) -> vllm_env.VllmEnv:
        made.append(folder)
        folder.mkdir()
        time.sleep(0.3)
        stamp.write_text(json.dumps({"recipe": vllm_env.recipe_hash(), "seconds": {"torch": 1.0}}))
        return vllm_env.VllmEnv(folder, {"torch": 1.0})

    monkeypatch.setattr(vllm_env, "_make", make)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(vllm_env.ensure, [tmp_path / "vllm-0.32"] * 2))
    assert made == [tmp_path / "vllm-0.32"]
    assert found[0] == found[1] == vllm_env.VllmEnv(tmp_path / "vllm-0.32", {"torch": 1.0})
