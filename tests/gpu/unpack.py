"""Join parcels that tests.gpu.prepare made into one folder for PYTHONPATH; standard library only.

python3 unpack.py SITE PIECE...
"""

import lzma
import shutil
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SEPARATOR = "%"  # as in prepare.py


def unpack(parcel: Path, site: Path) -> str:
    """A wheel's own data folders (NAME.data/purelib, platlib) land in `site` itself; its scripts and headers are dropped."""
    if parcel.suffix == ".xz":
        target = site / parcel.stem.replace(SEPARATOR, "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        with lzma.open(parcel) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
        return parcel.name
    with zipfile.ZipFile(parcel) as archive:
        for member in archive.infolist():
            top, _, rest = member.filename.partition("/")
            kind, _, inside = rest.partition("/")
            if not top.endswith(".data"):
                archive.extract(member, site)
            elif kind in ("purelib", "platlib") and inside and not member.is_dir():
                target = site / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(member))
    return parcel.name


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
