"""Measure `resync` and `verify --full` on the testbed: python -m tests.testbed.measure_weights --out FILE [--files N] [--gib G] ...

(a) a no-change resync of a large snapshot of sparse files (valid headers and index, zeros behind) against `rsync -a` and
    `rsync -a --checksum` on the same files;  (b) a full copy of random bytes against plain `rsync -a -e ssh`, by streams;
(c) hashing, bytes a second and core, against `sha256sum`. Root; the testbed must be up, or it is brought up and taken down.
The commands, versions and the machine are in the file that it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import snapshot
from tests.testbed import faults
from tests.testbed.hosts import Testbed
from tests.testbed.shell import How
from tests.testbed.twin import User
from tests.testbed.weights import HEAD_HOME, WORKER_HOME, Bench

GIB = 1 << 30
REPEATS = 3


@dataclass(frozen=True)
class Sizes:
    """How much is measured. checksum_files: on so many of the sparse files `--checksum` is run (each is read whole on both sides)."""

    files: int
    gib: float
    checksum_files: int
    copy_mib: int
    copy_files: int
    rate_mbit: int
    hash_mib: int


def sparse_snapshot(bench: Bench, count: int, total: int) -> None:
    """The same snapshot on both hosts: valid header, then a hole; small files real. No data blocks but the headers'."""
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    weight_map = {f"layer.{n}": name for n, name in enumerate(names)}
    small = {
        "config.json": b'{"model_type": "tiny"}',
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
    }
    for host, home in ((bench.head, HEAD_HOME), (bench.worker, WORKER_HOME)):
        folder = snapshot.hub_cache(host.path(home), small)
        for n, name in enumerate(names):
            header = _header(f"layer.{n}", total // count)
            blob = folder.parents[1] / "blobs" / f"sparse-{n:05}"  # no sha256: nothing has been hashed
            with blob.open("wb") as file:
                file.write(header)
                file.truncate(len(header) + total // count)
            os.utime(blob, (1_700_000_000, 1_700_000_000))
            (folder / name).symlink_to(os.path.relpath(blob, folder))


def _header(tensor: str, size: int) -> bytes:
    text = json.dumps({tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(text).to_bytes(8, "little") + text


def seconds(function: Callable[[], Any]) -> float:
    begin = time.monotonic()
    function()
    return round(time.monotonic() - begin, 3)


def good(bench: Bench, *words: str, **settings: str) -> None:
    done = bench.invoke(*words, **settings)
    if done.code:
        raise SystemExit(f"invoke {' '.join(words)} ended with {done.code}\n{done.err}")


def on_head(bench: Bench, command: str) -> None:
    """A command line on the head, in a plain login's environment; it fails the measurement when it fails."""
    bench.head.run("sh", "-c", command, how=How(timeout_s=1800))


def no_change(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """(a): nothing has to be copied. Blobs of both hosts are compared by rsync, as a person would do it."""
    sparse_snapshot(bench, sizes.files, int(sizes.gib * GIB))
    repo = "hub/models--lab--tiny"
    plain = f"rsync -a {HEAD_HOME}/{repo}/ spark2:{WORKER_HOME}/{repo}/"
    names = " ".join(f"sparse-{n:05}" for n in range(sizes.checksum_files))
    checked = f"cd {HEAD_HOME}/{repo}/blobs && rsync -a --checksum {names} spark2:{WORKER_HOME}/{repo}/blobs/"
    first = seconds(lambda: good(bench, "resync"))
    ours = [seconds(lambda: good(bench, "resync")) for _ in range(REPEATS)]
    rsync = [seconds(lambda: on_head(bench, plain)) for _ in range(REPEATS)]
    part = seconds(lambda: on_head(bench, checked))
    whole = part * sizes.files / sizes.checksum_files
    added = [what_up_adds(bench) for _ in range(REPEATS)]
    return {
        "files": sizes.files,
        "what the weights add to up, s": added,
        "bytes": int(sizes.gib * GIB),
        "invoke resync, first look, s": first,
        "invoke resync, s": ours,
        "rsync -a, s": rsync,
        "rsync -a --checksum, s": {"measured": part, "files": sizes.checksum_files, "scaled to all files": round(whole, 1)},
        "resync is faster than --checksum by": round(whole / statistics.median(ours), 1),
        "commands": ["invoke resync", plain, "rsync -a --checksum FILES spark2:..."],
    }


def what_up_adds(bench: Bench) -> float:
    """Seconds of the look at the weights in `up` when everything is in place; the connections are open already, as they are there."""
    from cluster import session, settings
    from cluster.weights.ensure import ensure

    place = {"HEAD_HF_HOME": HEAD_HOME, "WORKER_HF_HOME": WORKER_HOME, "MODEL": snapshot.REPO, "MODEL_REVISION": snapshot.REVISION}
    effective = settings.load({"kit": "twin"}, environ=place, path=Path("/nonexistent/.env"))
    os.environ["XDG_STATE_HOME"] = bench.user.env["XDG_STATE_HOME"]
    with session.opened(effective) as cluster:
        cluster.probes(lines=0)
        return seconds(lambda: ensure(cluster, lambda _: None, lambda: None))


def full_copy(bench: Bench, sizes: Sizes) -> dict[str, Any]:
    """(b): random bytes to an empty worker, by ours with 1, 2 and 4 streams and by plain rsync; also over a limited link."""
    bench.clear()
    files = snapshot.model_files(shards=sizes.copy_files, shard_bytes=(sizes.copy_mib << 20) // sizes.copy_files)
    Bench(bench.bed, bench.user, files).fill(bench.head)
    repo = "hub/models--lab--tiny"
    plain = f"mkdir -p {WORKER_HOME}; rsync -a -e ssh {HEAD_HOME}/{repo}/ spark2:{WORKER_HOME}/{repo}/"
    bench.worker.run("mkdir", "-p", f"{WORKER_HOME}/hub")

    def emptied(act: Callable[[], None]) -> float:
        shutil.rmtree(bench.worker.path(WORKER_HOME), ignore_errors=True)
        bench.worker.run("mkdir", "-p", f"{WORKER_HOME}/hub")
        return seconds(act)

    def all_ways() -> dict[str, float]:
        found = {"rsync -a -e ssh": emptied(lambda: on_head(bench, plain))}
        for streams in ("1", "2", "4"):
            found[f"SYNC_STREAMS={streams} invoke resync"] = emptied(lambda n=streams: good(bench, "resync", SYNC_STREAMS=n))  # type: ignore[misc]
        return found

    result: dict[str, Any] = {
        "bytes": sum(map(len, files.values())),
        "files": len(files),
        "commands": [plain, "SYNC_STREAMS=n invoke resync"],
    }
    for name, limit in (("unlimited link, s", 0), (f"{sizes.rate_mbit} Mbit/s link, s", sizes.rate_mbit)):
        with faults.rate_limit(bench.worker, limit) if limit else nullcontext():
            result[name] = all_ways()
    return result


def hashing(folder: Path, mib: int) -> dict[str, Any]:
    """(c): one file of random bytes, one core, page cache warm for both: the agent's dropping of what it has read is switched off."""
    path = folder / "random"
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    code = "import sys, cluster.agent_weights as a; a.os.posix_fadvise = lambda *_: None; print(a.sha256_of(sys.argv[1]))"
    found: dict[str, list[float]] = {}
    for name, command in {"sha256sum": ["sha256sum", str(path)], "the agent": [sys.executable, "-c", code, str(path)]}.items():
        _on_one_core(command)
        found[name] = [round((mib << 20) / _on_one_core(command) / 1e6, 1) for _ in range(REPEATS)]
    return {
        "bytes": mib << 20,
        "MB/s on one core, process start included": found,
        "commands": ["sha256sum FILE", f"python -c {code!r} FILE"],
    }


def _on_one_core(words: Sequence[str]) -> float:
    """Seconds of a command that may use one core only."""
    core = {min(os.sched_getaffinity(0))}
    return seconds(lambda: subprocess.run(words, check=True, capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, core)))


def machine() -> dict[str, Any]:
    """Where it was measured."""
    cpu = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = {tool: _first_line(tool, flag) for tool, flag in (("rsync", "--version"), ("ssh", "-V"), ("sha256sum", "--version"))}
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min_before": round(os.getloadavg()[0], 2),
        **versions,
    }


def _first_line(tool: str, flag: str) -> str:
    done = subprocess.run([tool, flag], capture_output=True, text=True)
    return (done.stdout or done.stderr).splitlines()[0]


def measure(sizes: Sizes) -> Mapping[str, Any]:
    host = machine()
    with Testbed(hosts=2) as bed, tempfile.TemporaryDirectory() as folder:
        bench = Bench(bed, User.at(Path(folder)))
        other = Bench(bed, User.at(Path(folder) / "copy"))  # its own manifests: the files are other ones under the same name
        bench.clear()
        try:
            parts = {
                "no change": no_change(bench, sizes),
                "full copy": full_copy(other, sizes),
                "hashing": hashing(Path(folder), sizes.hash_mib),
            }
        finally:
            bench.clear()
    return {"command": " ".join(["python -m tests.testbed.measure_weights", *sys.argv[1:]]), "machine": host, **parts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.measure_weights")
    parser.add_argument("--out", type=Path, required=True)
    defaults = {"files": 120, "checksum-files": 12, "copy-mib": 2048, "copy-files": 16, "rate-mbit": 1000, "hash-mib": 1024}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--gib", type=float, default=164)
    args = vars(parser.parse_args())
    out = args.pop("out")
    result = measure(Sizes(**args))
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
