"""The capture file: what was written is read, and nothing else is."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.kld import capture
from bench.receipt import canonical, seal_of
from tests.bench.kld.samples import full, top_k

ROWS = [[(0.5, 0.25, 0.25), (0.1, 0.2, 0.7)]]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "stock.npz"
    capture.write(full(ROWS), path)
    return path


def test_read_gives_what_was_written(written: Path) -> None:
    was, now = full(ROWS), capture.read(written)
    assert (now.meta, now.seal) == (was.meta, was.seal)
    assert np.array_equal(now.arrays["hidden"], was.arrays["hidden"])
    assert np.array_equal(now.head["weight"], np.eye(3))
    assert sorted(path.name for path in written.parent.iterdir()) == [f"head-{was.meta.head.sha256[:16]}.npz", "stock.npz"]  # type: ignore[union-attr]


def test_top_k_needs_no_head(tmp_path: Path) -> None:
    capture.write(top_k([[[(3, 0.5), (1, 0.25)]]]), tmp_path / "served.npz")
    assert capture.read(tmp_path / "served.npz").arrays["ids"].tolist() == [[[3, 1]]]
    assert [path.name for path in tmp_path.iterdir()] == ["served.npz"]


def rewritten(path: Path, **members: object) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, **members})  # type: ignore[arg-type]


def test_changed_arrays_are_refused(written: Path) -> None:
    rewritten(written, hidden=np.zeros((1, 2, 3), np.float32))
    with pytest.raises(InvalidMeasurement, match="the arrays are not those that were sealed"):
        capture.read(written)


def test_a_changed_description_is_refused(written: Path) -> None:
    with np.load(written) as file:
        plain = json.loads(file["meta"].tobytes())
    plain["edit"] = "none at all"
    rewritten(written, meta=np.frombuffer(canonical(plain).encode(), np.uint8))
    with pytest.raises(InvalidMeasurement, match="the seal does not fit"):
        capture.read(written)
    plain["capture"] = "spark-lab/kld-capture/v9"
    rewritten(written, meta=np.frombuffer(canonical({**plain, "seal": seal_of(plain)}).encode(), np.uint8))
    with pytest.raises(InvalidMeasurement, match="no capture of this form"):
        capture.read(written)


def test_a_missing_or_other_head_is_refused(written: Path) -> None:
    (head,) = written.parent.glob("head-*")
    np.savez(head, weight=np.ones((3, 3), np.float32))
    with pytest.raises(InvalidMeasurement, match="is not the head that was captured"):
        capture.read(written)
    head.unlink()
    with pytest.raises(BadRequest, match=r"needs head-.*npz beside it"):
        capture.read(written)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"{}"])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidMeasurement, match="is no readable capture"):
        capture.read(path)


def test_a_foreign_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", hidden=np.zeros(3))
    with pytest.raises(InvalidMeasurement, match="no capture of this form"):
        capture.read(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "pickle.npz", "w") as file:
        file.writestr("meta.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(128) + b"\x80")
    with pytest.raises(InvalidMeasurement, match="is no readable capture"):
        capture.read(tmp_path / "pickle.npz")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"no such capture.*\ntry: invoke kld.capture"):
        capture.read(tmp_path / "x.npz")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_captured(bad: float) -> None:
    meta = full(ROWS).meta
    with pytest.raises(InvalidMeasurement, match="NaN or infinite"):
        capture.make(meta, {"hidden": np.array([[[0, 0, 0], [0, bad, 0]]], np.float32)})


def test_arrays_of_another_shape_are_not_captured() -> None:
    with pytest.raises(InvalidMeasurement, match="1 windows of 2 positions has other arrays"):
        capture.make(full(ROWS).meta, {"hidden": np.zeros((1, 3, 3), np.float32)})


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: object, **arrays: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(BenchError, match="No space left on device"):
        capture.write(full(ROWS), tmp_path / "stock.npz")
    assert list(tmp_path.iterdir()) == []
