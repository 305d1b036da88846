"""Join parcels that tests.gpu.prepare made into one folder for PYTHONPATH; standard library only.

python3 unpack.py SITE PIECE...
"""

import lzma
import shutil
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import IO

SEPARATOR = "%"  # as in prepare.py


def unpack(parcel: Path, site: Path) -> str:
    if parcel.suffix == ".xz":
        with lzma.open(parcel) as source:
            put(source, site / parcel.stem.replace(SEPARATOR, "/"))
        return parcel.name
    with zipfile.ZipFile(parcel) as archive:
        for member in archive.infolist():
            if not member.is_dir() and (name := installed(member.filename)):
                with archive.open(member) as source:
                    put(source, site / name)
    return parcel.name


def installed(name: str) -> str:
    """Where a wheel's member lands: its data folders (NAME.data/purelib, platlib) in the site itself; "" for its scripts and headers."""
    top, _, rest = name.partition("/")
    kind, _, inside = rest.partition("/")
    if not top.endswith(".data"):
        return name
    return inside if kind in ("purelib", "platlib") else ""


def put(source: IO[bytes], target: Path) -> None:
    """Parcels are unpacked at once, and have folders in common: zipfile's own extract fails where another process makes one first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def main() -> int:
    site = Path(sys.argv[1])
    site.mkdir(parents=True, exist_ok=True)
    parcels = sorted((file for piece in sys.argv[2:] for file in Path(piece).iterdir()), key=lambda file: -file.stat().st_size)
    with ProcessPoolExecutor() as pool:
        done = list(pool.map(unpack, parcels, [site] * len(parcels)))
    print(f"{len(done)} parcels in {site}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
