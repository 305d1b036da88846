"""Build exllamav3's CUDA extension alone, from the sources in its wheel; needs torch, ninja and nvcc, none of exllamav3's own needs.

    TORCH_CUDA_ARCH_LIST=12.1a MAX_JOBS=20 python build_ext.py exllamav3-1.6.5-py3-none-any.whl TARGET

Writes TARGET/exllamav3_ext.so; a folder on PYTHONPATH (or site-packages) makes it importable.
The wheel: `pip download exllamav3==1.6.5 --no-deps`.
"""

import os
import shutil
import sys
import zipfile
from pathlib import Path

WHEEL_PREFIX = "exllamav3-1.6.5-"
NAME = "exllamav3_ext"


def sources(folder: Path) -> list[str]:
    """Every translation unit of a CUDA build: those under rocm/ are for another vendor's GPUs."""
    found = [path for path in folder.rglob("*") if path.suffix in (".cpp", ".cu", ".c")]
    return sorted(str(path) for path in found if "rocm" not in path.relative_to(folder).parts)


def unpack(wheel: Path, into: Path) -> Path:
    """Refuses another release than the one whose calls the plugin makes."""
    if not wheel.name.startswith(WHEEL_PREFIX):
        raise SystemExit(f"{wheel.name}: the plugin calls exllamav3 1.6.5's extension; get that wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    return into / "exllamav3" / NAME


def build(wheel: Path, target: Path) -> Path:
    """The .so. The compiler's flags are exact ones: --use_fast_math, which exllamav3's own build has, is left out."""
    from torch.utils.cpp_extension import load

    if "TORCH_CUDA_ARCH_LIST" not in os.environ:
        raise SystemExit("set TORCH_CUDA_ARCH_LIST: 12.1a for a DGX Spark (GB10), 9.0 for an H100 or H200")
    work = target / "build"
    work.mkdir(parents=True, exist_ok=True)
    folder = unpack(wheel, target / "source")
    load(
        name=NAME, sources=sources(folder), extra_include_paths=[str(folder)], build_directory=str(work),
        extra_cflags=["-Ofast"], extra_cuda_cflags=["-O3", "--compress-mode=size"], verbose=False,
    )  # fmt: skip
    return Path(shutil.copy(work / f"{NAME}.so", target / f"{NAME}.so"))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
