"""Real vLLM 0.32.0 for a GPU machine without a network, as folders that fit what one transfer to it may carry.

    python -m tests.gpu.prepare FOLDER [--extension exllamav3_ext.so.xz]

Downloads wheels for Python 3.12 on x86_64 (0.5 GB, once) into FOLDER/wheels and fills FOLDER/piece1..N with parcels: whole wheels, the
parts of vLLM's wheel that an H100 or H200 needs, and single files in xz. tests.gpu.unpack joins them there. The machine is expected to
have torch >= 2.11, triton, numpy and what comes with them; wheels.txt is what it lacks. Needs pip and zip.
"""

import argparse
import fnmatch
import lzma
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
VLLM = "vllm==0.32.0"
LIMIT_BYTES = 55 << 20  # of one piece: 64 MiB less what else travels with it
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17, 12, 5)] + ["manylinux2014_x86_64", "linux_x86_64"]
# Parts of vLLM's wheel, each a parcel. Left out: FlashAttention 2 (an H100 or H200 runs 3), the Rust front end, kernels of other GPUs.
PARTS = {
    "vllm-kernels": ["vllm/_C_stable_libtorch.abi3.so"],
    "vllm-moe": ["vllm/_moe_C_stable_libtorch.abi3.so"],
    "vllm-python": ["vllm/*", "vllm-0.32.0.dist-info/*"],
}
OTHERS = ["*/_C_stable_libtorch.abi3.so", "*/_moe_C_stable_libtorch.abi3.so"]
LEFT_OUT = ["*/_vllm_fa?_C.abi3.so", "vllm/vllm-rs", "vllm/third_party/fmha_sm100/*", "vllm/_qutlass_C.abi3.so"]
SQUEEZED = "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"  # 43 MB in the wheel, 11 MB in xz
SEPARATOR = "%"  # for "/" in the name of a parcel that is a single file


def download(names: Iterable[str], folder: Path) -> None:
    """Wheels for the machine's Python, not for this one; what is there already is not asked for again."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    for platform in PLATFORMS:
        words += ["--platform", platform]
    subprocess.run([sys.executable, "-m", "pip", "-qq", "download", *words, "-d", str(folder), *names], check=True)


def cut(wheel: Path, parcel: Path, wanted: list[str], without: list[str]) -> None:
    """Copy members of a wheel into a zip of their own as they are compressed there."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _any(name, wanted) and not _any(name, without)]
    parcel.unlink(missing_ok=True)
    subprocess.run(["zip", "-q", "-nw", str(wheel), "-U", "--out", str(parcel), "-@"], input="\n".join(names), text=True, check=True)


def _any(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def squeeze(wheel: Path, name: str, parcels: Path) -> None:
    """One member as xz; a minute, so what is there is kept."""
    parcel = parcels / f"{name.replace('/', SEPARATOR)}.xz"
    if not parcel.exists():
        with zipfile.ZipFile(wheel) as archive:
            parcel.write_bytes(lzma.compress(archive.read(name)))


def pack(parcels: Path, folder: Path, limit: int = LIMIT_BYTES) -> list[Path]:
    """Hard links in folder/piece1..N, largest parcels first, each into the first piece with room. Raises SystemExit for one too large."""
    for old in folder.glob("piece*"):
        shutil.rmtree(old)
    room: list[int] = []
    for parcel in sorted(parcels.iterdir(), key=lambda file: -file.stat().st_size):
        size = parcel.stat().st_size
        if size > limit:
            raise SystemExit(f"{parcel.name} has {size} bytes, and a piece takes {limit}")
        number = next((index for index, free in enumerate(room) if free >= size), len(room))
        if number == len(room):
            room.append(limit)
        room[number] -= size
        piece = folder / f"piece{number + 1}"
        piece.mkdir(parents=True, exist_ok=True)
        (piece / parcel.name).hardlink_to(parcel)
    return sorted(folder.glob("piece*"))


def prepare(folder: Path, extension: Path | None) -> list[Path]:
    wheels, parcels = folder / "wheels", folder / "parcels"
    download([VLLM, *(HERE / "wheels.txt").read_text().split()], wheels)
    parcels.mkdir(exist_ok=True)
    vllm = next(wheels.glob("vllm-0.32.0-*.whl"))
    for name, wanted in PARTS.items():
        cut(vllm, parcels / f"{name}.zip", wanted, LEFT_OUT + ([] if wanted[0] in PARTS["vllm-kernels"] + PARTS["vllm-moe"] else OTHERS))
    squeeze(vllm, SQUEEZED, parcels)
    for wheel in wheels.glob("*.whl"):
        if wheel != vllm:
            shutil.copy(wheel, parcels)
    if extension:
        shutil.copy(extension, parcels / "exllamav3_ext.so.xz")
    return pack(parcels, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.prepare")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extension", type=Path, help="exllamav3_ext.so.xz, built for the GPU by overlay/build_ext.py")
    args = parser.parse_args()
    for piece in prepare(args.folder, args.extension):
        files = list(piece.iterdir())
        print(f"{piece} {sum(file.stat().st_size for file in files) / 1e6:.1f} MB in {len(files)} parcels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
