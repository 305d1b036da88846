"""What is packed here is what is unpacked there: real zips, real subprocess, nothing of vLLM."""

import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.gpu import prepare, unpack


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-0.32.0-cp38-abi3-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vllm/_C_stable_libtorch.abi3.so", b"kernels" * 1000)
        archive.writestr("vllm/configs/E=1,block_shape=[128,128].json", "{}")
        archive.writestr("vllm/vllm-rs", b"left out")
        archive.writestr("vllm/__init__.py", "x = 1\n")
        archive.writestr("vllm-0.32.0.data/purelib/more/inner.py", "y = 2\n")
        archive.writestr("vllm-0.32.0.data/scripts/vllm", "#!python\n")
    return path


def members(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return sorted(archive.namelist())


def test_cut_takes_what_is_wanted_under_its_own_name(wheel: Path, tmp_path: Path) -> None:
    parcel = tmp_path / "part.zip"
    prepare.cut(wheel, parcel, ["vllm/*"], [*prepare.LEFT_OUT, *prepare.OTHERS])
    assert members(parcel) == ["vllm/__init__.py", "vllm/configs/E=1,block_shape=[128,128].json"]


def test_pieces_hold_everything_once_and_no_more_than_fits(tmp_path: Path) -> None:
    parcels = tmp_path / "parcels"
    parcels.mkdir()
    sizes = {"a": 60, "b": 50, "c": 40, "d": 40, "e": 10}
    for name, size in sizes.items():
        (parcels / name).write_bytes(b"x" * size)
    pieces = prepare.pack(parcels, tmp_path, limit=100)
    held = [sorted(file.name for file in piece.iterdir()) for piece in pieces]
    assert held == [["a", "c"], ["b", "d", "e"]]
    assert prepare.pack(parcels, tmp_path, limit=100) == pieces  # again, over what is there


def test_a_parcel_that_fits_no_piece_is_named(tmp_path: Path) -> None:
    (tmp_path / "parcels").mkdir()
    (tmp_path / "parcels/big.whl").write_bytes(b"x" * 11)
    with pytest.raises(SystemExit, match=r"big\.whl has 11 bytes, and a piece takes 10"):
        prepare.pack(tmp_path / "parcels", tmp_path, limit=10)


def test_unpacked_by_its_own_command(wheel: Path, tmp_path: Path) -> None:
    piece, site = tmp_path / "piece1", tmp_path / "site"
    piece.mkdir()
    (piece / wheel.name).write_bytes(wheel.read_bytes())
    (piece / "vllm%deep%one.so.xz").write_bytes(lzma.compress(b"object"))
    done = subprocess.run([sys.executable, unpack.__file__, str(site), str(piece)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"2 parcels in {site}\n"
    assert (site / "vllm/deep/one.so").read_bytes() == b"object"
    assert (site / "more/inner.py").read_text() == "y = 2\n"
    assert (site / "vllm/_C_stable_libtorch.abi3.so").read_bytes() == b"kernels" * 1000
    assert not (site / "vllm-0.32.0.data").exists()


def test_parcels_with_folders_in_common_are_unpacked_at_once(tmp_path: Path) -> None:
    piece, site = tmp_path / "piece1", tmp_path / "site"
    piece.mkdir()
    for number in range(8):
        with zipfile.ZipFile(piece / f"{number}.whl", "w") as wheel:
            for folder in range(200):
                wheel.writestr(f"common/{folder}/deep/{number}.py", f"{number}\n")
    done = subprocess.run([sys.executable, unpack.__file__, str(site), str(piece)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(file.name for file in site.glob("common/199/deep/*")) == [f"{number}.py" for number in range(8)]
