"""A small Debian image, `deb:1`, for the hosts' dockerds: Python, busybox, no registry.

    python -m tests.testbed.image      # make the archive if the cache lacks it, and load it into every host that is up

The archive is what `docker load` reads, put together here, so that the image has the same id on every host.
"""

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.shell import ENV, PATH, How, failure, run
from tests.testbed.vllm_env import CACHE

TAG = "deb:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # what uname says -> what docker says
EPOCH = "1700000000"  # every file is at most this new, so that the same packages give the same layer


@dataclass(frozen=True)
class Recipe:
    """All that decides what is in the image; a change makes a new archive."""

    suite: str = "bookworm"
    packages: tuple[str, ...] = (
        "python3.11-minimal",
        "libpython3.11-stdlib",
        "libgomp1",
        "libstdc++6",
        "busybox-static",
    )
    links: str = 'chroot "$1" /bin/busybox --install -s /bin; ln -sf python3.11 "$1/usr/bin/python3"'
    left_out: tuple[str, ...] = ("/usr/share/doc/*", "/usr/share/man/*")
    machine: str = platform.machine()
    epoch: str = EPOCH

    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def command(self, target: Path) -> list[str]:
        """Only unpacks the packages: no maintainer script runs, which saves minutes."""
        options = [f"--dpkgopt=path-exclude={glob}" for glob in self.left_out]
        include = f"--include={','.join(self.packages)}"
        return [
            "mmdebstrap",
            "-q",
            "--variant=extract",
            include,
            f"--extract-hook={self.links}",
            *options,
            self.suite,
            str(target),
        ]


RECIPE = Recipe()


def ensure(recipe: Recipe = RECIPE, cache: Path = CACHE, tag: str = TAG) -> Path:
    """The archive of the image called `tag`, about 60 MB; made first (10 s to a minute, from Debian's packages) if not cached."""
    archive = cache / f"deb-{recipe.key()}.docker.tar"
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    layer = cache / f"deb-{recipe.key()}.layer.tar"
    layer.unlink(missing_ok=True)
    how = How(timeout_s=900, env=ENV | {"SOURCE_DATE_EPOCH": recipe.epoch}, hint="apt-get update, then this again")
    run(["nice", "-n", "10", *recipe.command(layer)], f"make the root file system of {tag}", how)
    pack(layer, archive, tag)
    layer.unlink()
    return archive


def pack(layer: Path, archive: Path, tag: str) -> str:
    """Write a `docker load` archive of one layer and return the image id (the digest of its configuration)."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps(_config(digest), sort_keys=True).encode()
    image = hashlib.sha256(config).hexdigest()
    manifest = [{"Config": f"{image}.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    unfinished = archive.with_suffix(".part")
    with tarfile.open(unfinished, "w") as tar:
        _add(tar, f"{image}.json", config)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        tar.add(layer, "layer.tar")
    os.replace(unfinished, archive)
    return f"sha256:{image}"


def _config(layer_digest: str) -> dict[str, object]:
    return {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "created": "2023-11-14T22:13:20Z",
        "config": {"Cmd": ["/bin/sh"], "Env": [f"PATH={PATH}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def image_id(host: Host, tag: str = TAG) -> str | None:
    """Id of a tagged image on a host; None if it has none."""
    result = host.attempt("docker", "image", "inspect", "--format", "{{.Id}}", tag)
    return result.stdout.strip() if result.status == 0 else None


def load(host: Host, archive: Path | None = None, tag: str = TAG) -> str:
    """Make sure that the host has `deb:1` (or the archive's `tag`), and return its id."""
    known = image_id(host, tag)
    if known is not None:
        return known
    host.run("docker", "load", how=How(timeout_s=300, stdin=archive or ensure()))
    loaded = image_id(host, tag)
    if loaded is None:
        raise failure(f"load {tag} on {host.name}", why="docker load ended well, yet the tag is not there")
    return loaded


def main() -> int:
    begin = time.monotonic()
    archive = ensure()
    print(f"{archive} {archive.stat().st_size / 1e6:.0f} MB, {time.monotonic() - begin:.1f} s")
    bed = Testbed.found()
    for host in bed.hosts if bed and bed.layout.docker else ():
        begin = time.monotonic()
        print(f"{host.name} {TAG} {load(host, archive)} {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
