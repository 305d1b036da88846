"""Direction files read without torch; controls; what does not fit a model."""

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ablit.served import direction as directions
from bench.errors import BadRequest
from tests.ablit.served.hands import direction


def file(entry: dict[str, object], data: bytes, name: str = "direction", **metadata: str) -> bytes:
    header = json.dumps({"__metadata__": metadata, name: {**entry, "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("F32", struct.pack("<3f", 1.0, -2.0, 0.5)),
        ("F16", struct.pack("<3e", 1.0, -2.0, 0.5)),
        ("F64", struct.pack("<3d", 1.0, -2.0, 0.5)),
        ("BF16", b"".join(struct.pack("<f", value)[2:] for value in (1.0, -2.0, 0.5))),
    ],
)
def test_every_type_reads_the_same(kind: str, data: bytes) -> None:
    vectors, metadata = directions.parsed(file({"dtype": kind, "shape": [1, 3]}, data, model="tiny"))
    assert vectors.tolist() == [1.0, -2.0, 0.5]
    assert metadata == {"model": "tiny"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no direction file"),
        (b"PK\x03\x04 a zip file, as torch writes them", "does not begin as a safetensors file"),
        (file({"dtype": "F32", "shape": [1]}, b"\0\0\0\0"), "the direction is zero"),
        (file({"dtype": "F32", "shape": [1]}, struct.pack("<f", float("nan"))), "all of it finite"),
        (file({"dtype": "F32", "shape": [2]}, struct.pack("<f", 1.0)), "cannot reshape"),
        (file({"dtype": "I8", "shape": [1]}, b"\1"), "its type is I8"),
        (file({"dtype": "F32", "shape": [1]}, struct.pack("<f", 1.0), name="other"), 'no tensor "direction" but other'),
    ],
)
def test_what_is_no_direction(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "d.safetensors").write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        directions.read(tmp_path / "d.safetensors")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read: No such file"):
        directions.read(tmp_path / "none.safetensors")


def test_committed_direction_of_the_lab() -> None:
    found = directions.read(Path(__file__).parents[3] / "results/ablation/brief-15.safetensors")
    assert found.vectors.shape == (576,)
    assert found.facts["name"] == "brief-15"
    assert found.id == found.sha256 == found.facts["sha256"]


def test_a_files_own_notes_do_not_replace_its_sha256(tmp_path: Path) -> None:
    """Ranks report the sha256 of the file: a note of that name, say of what it was made from, is another."""
    content = directions.written(np.ones(4, np.float32), {"name": "polite-3", "sha256": "0" * 64})
    (tmp_path / "copy.safetensors").write_bytes(content)
    found = directions.read(tmp_path / "copy.safetensors")
    assert (found.facts["name"], found.facts["sha256"]) == ("polite-3", found.sha256)


def test_controls_are_as_long_as_the_real_one() -> None:
    real = direction((3, 4, 0, 0, 0, 0, 0, 0))  # of length 5
    one, other, again = (directions.random_like(real, seed) for seed in (0, 1, 0))
    assert [float(np.linalg.norm(each.vectors)) for each in (one, other)] == pytest.approx([5.0, 5.0])
    assert one.content == again.content
    assert one.sha256 != other.sha256
    assert one.id == one.facts["name"] == "random-0"
    assert directions.parsed(one.content)[0].tolist() == one.vectors.tolist()
    per_layer = directions.Direction("x", b"", np.array([[3, 4], [0, 1]], np.float32), {})
    assert float(np.linalg.norm(directions.random_like(per_layer, 0).vectors)) == pytest.approx(3.0)  # the mean of 5 and 1


def test_another_models() -> None:
    with pytest.raises(BadRequest, match="has 8 values, tiny a hidden size of 16: it is another model's\ntry: "):
        directions.refuse_unfit(direction(), 16, (0,), "tiny")
    per_layer = directions.Direction("x", b"", np.array([[3, 4], [0, 0]], np.float32), {})
    directions.refuse_unfit(per_layer, 2, (0,), "tiny")
    for layer in (1, 2):
        with pytest.raises(BadRequest, match=f"no vector for layer {layer}; it has 2"):
            directions.refuse_unfit(per_layer, 2, (layer,), "tiny")


@pytest.mark.parametrize(
    ("repository", "revision", "told"),
    [
        ("a/b", "1" * 40, None),
        ("a/b", None, None),
        ("a/b", "2" * 40, "the direction was read from a/b at 111111111111, the kit serves a/b at 222222222222: "),
        ("a/c", None, "the direction was read from a/b at 111111111111, the kit serves a/c: "),
    ],
)
def test_what_model_it_was_read_from(repository: str, revision: str | None, told: str | None) -> None:
    real = dataclasses.replace(direction(), facts={"model_repository": "a/b", "model_revision": "1" * 40})
    found = directions.unlike(real, repository, revision)
    assert found is None if told is None else str(found).startswith(told)
    assert directions.unlike(direction(), repository, revision) is None
