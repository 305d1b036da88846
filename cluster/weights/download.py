"""`invoke download`: the pinned snapshots into the head's standard cache, with room checked before and every file proven after."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import LaunchError
from cluster.session import Cluster
from cluster.weights import held, hub, looks, manifest, progress
from cluster.weights.held import Finding, Held
from cluster.weights.hub import Hub, RemoteFile
from cluster.weights.looks import Say, View
from cluster.weights.progress import gib
from cluster.weights.snapshots import Snapshot
from cluster.weights.sync import SPARE_BYTES

Keep = Callable[[], None]
REMOTE_HEAD = "the head is another machine: downloads run on the head itself"


def download(cluster: Cluster, say: Say) -> None:
    """Every snapshot of the kit, or, where the Hub will not give one, the fallback. Raises LaunchError."""
    if not looks.head_is_here(cluster):
        raise LaunchError(REMOTE_HEAD, node=cluster.head, hint="there, in a checkout with the same .env: invoke download")
    view = looks.look(cluster, say, [cluster.head])
    view.raise_failures()
    for snapshot in view.snapshots:
        try:
            bring(view, snapshot, say)
        except hub.Refused as error:
            if not (error.why.other_repository and snapshot.role == "model" and cluster.effective.settings.model_fallback):
                raise
            _fallback(view, say, error)


def bring(view: View, snapshot: Snapshot, say: Say, keep: Keep = lambda: None) -> None:
    """Make one snapshot complete in the head's cache, and write its manifest. Nothing is asked of the Hub when it is proven already."""
    wrong = view.findings(view.cluster.head, snapshot)
    if snapshot.is_folder:
        if wrong:
            raise looks.refuse(view.cluster.head, wrong, "the model folder is not complete")
        say(f"{snapshot.repo}: a plain folder, complete; nothing to download")
        return
    cache = Cache.of(view, snapshot)
    say(f"cache {cache.hub.parent} ({cache.source})")
    known, exclude = view.manifests.get(snapshot), _exclude(view)
    if not wrong and known and (known.source, known.exclude) == ("hub", exclude):
        say(f"{snapshot.label}: complete, {len(known.files)} files, {gib(known.size_bytes)}; the Hub was not asked")
        return
    if hub.offline():
        _offline(view, snapshot, wrong, say)
        return
    if note := hub.xet_problem():
        say(f"note: {note}")
    access = Hub(view.cluster.effective.settings.hf_token)
    try:
        wanted = access.listing(snapshot.repo, snapshot.revision, exclude)
    except hub.Refused as error:
        if wrong:
            raise
        say(f"note: {error.why.what}; {snapshot.label} is complete by its own index and headers")
        return
    _set_aside(view, snapshot, cache, wanted, say)
    missing = cache.missing(wanted)
    if missing:
        _room(cache, missing)
        say(f"{snapshot.label}: downloading {len(missing)} of {len(wanted)} files, {gib(sum(missing.values()))}")
        _fetch(access, cache, Listing(snapshot, wanted, exclude), say, keep)
    _prove(view, Listing(snapshot, wanted, exclude), say)


def _exclude(view: View) -> tuple[str, ...]:
    text = view.cluster.effective.settings.hf_download_exclude or ""
    return tuple(filter(None, (glob.strip() for glob in text.split(","))))


def _offline(view: View, snapshot: Snapshot, wrong: list[Finding], say: Say) -> None:
    if wrong:
        raise looks.refuse(view.cluster.head, wrong, f"HF_HUB_OFFLINE=1, and {snapshot.label} is not complete")
    say(f"{snapshot.label}: complete by its own index and headers (HF_HUB_OFFLINE=1: the Hub was not asked)")


@dataclass(frozen=True)
class Cache:
    """One repository in the hub cache of this machine. source: where the setting of the cache's place comes from."""

    hub: Path
    repo: Path
    snapshot: Path
    source: str

    @classmethod
    def of(cls, view: View, snapshot: Snapshot) -> Cache:
        folder = Path(view.of(view.cluster.head, snapshot).folder)
        return cls(folder.parents[2], folder.parents[1], folder, f"HEAD_HF_HOME, {view.cluster.effective.sources['head_hf_home']}")

    def there(self, name: str, file: RemoteFile) -> bool:
        """Whether the file lies there in its full length, under its name or as a blob that only needs a link."""
        return any(_size(path) == file.size for path in (self.snapshot / name, self.repo / "blobs" / file.blob))

    def missing(self, wanted: Mapping[str, RemoteFile]) -> dict[str, int]:
        """Names and sizes of what is to come; a name whose blob is there needs a link only, and counts nothing."""
        absent = {name: file.size for name, file in wanted.items() if _size(self.snapshot / name) != file.size}
        return {name: 0 if self.there(name, wanted[name]) else size for name, size in absent.items()}

    def on_disk(self, wanted: Mapping[str, RemoteFile]) -> int:
        """Bytes of the wanted files that are on the disk by now, unfinished ones included."""
        whole = sum(file.size for name, file in wanted.items() if self.there(name, file))
        return whole + sum(map(_allocated, self.unfinished()))

    def unfinished(self) -> set[Path]:
        """The client's files that are not whole yet, of this download and of others."""
        return set((self.repo / "blobs").glob("*.incomplete"))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _set_aside(view: View, snapshot: Snapshot, cache: Cache, wanted: Mapping[str, RemoteFile], say: Say) -> None:
    """Rename what is proven bad: the client takes any file that is there for good."""
    bad = {each.path for each in view.findings(view.cluster.head, snapshot) if each.kind not in ("missing", "absent", "tensors")}
    bad |= {name for name, file in wanted.items() if _size(cache.snapshot / name) not in (None, file.size)}
    for name in sorted(bad & set(wanted)):
        # The payload itself, also in the store that repositories share, or the client would link it again. It replaces links to nothing.
        aside = _rename((cache.snapshot / name).resolve())
        if aside:
            say(f"{name} is bad: kept as {aside}, and downloaded again")


def _rename(path: Path) -> Path | None:
    if not os.path.lexists(path):
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = next(p for n in range(1000) if not os.path.lexists(p := path.with_name(f"{path.name}.bad-{stamp}{f'-{n}' if n else ''}")))
    try:
        path.rename(aside)
    except OSError as error:
        raise LaunchError(f"cannot set {path} aside: {error.strerror}", hint="ls -l of it; chown it to your login") from error
    return aside


def _room(cache: Cache, missing: Mapping[str, int]) -> None:
    """Raise LaunchError unless what is to come has room where the cache really lies, and may be written there."""
    at = next(path for path in (cache.repo, *cache.repo.parents) if path.is_dir())
    if not os.access(at, os.W_OK):
        owner = at.stat().st_uid
        raise LaunchError(f"the cache cannot be written: {at} belongs to uid {owner}", hint="chown it to your login, or set HF_HOME")
    space, need = os.statvfs(at), sum(missing.values())
    lack = need + SPARE_BYTES - space.f_bavail * space.f_frsize
    if need and lack > 0:
        what = f"{gib(lack)} ({lack} bytes) more must be free at {at}: {gib(need)} are to come"
        raise LaunchError(what, hint="df -h; hf cache prune; or set HF_HOME to a larger disk")


@dataclass(frozen=True)
class Listing:
    """What the Hub lists of a snapshot, without the excluded globs."""

    snapshot: Snapshot
    files: Mapping[str, RemoteFile]
    exclude: tuple[str, ...]


def _fetch(access: Hub, cache: Cache, listing: Listing, say: Say, keep: Keep) -> None:
    """Download, showing the bytes that are on the disk. When it is cut, whole files are kept, and its unfinished ones removed."""
    snapshot = listing.snapshot
    totals, before = {snapshot.role: sum(file.size for file in listing.files.values())}, cache.unfinished()
    process = access.begin(snapshot.repo, snapshot.revision, str(cache.hub), listing.exclude)
    try:
        with progress.shown("downloaded", totals, say) as tell:
            while not process.ended(0.5):
                tell({snapshot.role: min(cache.on_disk(listing.files), totals[snapshot.role])})
                keep()
    finally:
        process.stop()
        for path in cache.unfinished() - before:
            path.unlink(missing_ok=True)


def _prove(view: View, listing: Listing, say: Say) -> None:
    """Look at the files themselves, against the Hub's listing. Raises LaunchError; writes the manifest when they are right."""
    head, snapshot = view.cluster.head, listing.snapshot
    entries = {name: manifest.Entry(file.size, file.sha256) for name, file in listing.files.items()}
    view.manifests[snapshot] = made = manifest.new(snapshot, "hub", entries, listing.exclude)
    view.refresh([head])
    view.raise_failures()
    wrong = view.findings(head, snapshot)
    if wrong:
        raise looks.refuse(head, wrong, f"{snapshot.label} is not right after the download")
    view.manifests[snapshot] = made = made.with_hashes(_small_hashes(view.of(head, snapshot)))
    path = manifest.save(snapshot, made)
    say(f"{snapshot.label}: complete, {len(made.files)} files, {gib(made.size_bytes)}; sizes and headers are right; manifest {path}")


def _small_hashes(there: Held) -> Mapping[str, str | None]:
    return {path: entry.sha256 for path, entry in held.from_files(there).items()}


def _fallback(view: View, say: Say, error: hub.Refused) -> None:
    """Download MODEL_FALLBACK instead. It is not served: that takes MODEL and MODEL_REVISION to name it."""
    s = view.cluster.effective.settings
    if not s.model_fallback_revision:
        raise LaunchError(f"{error}\nand MODEL_FALLBACK has no commit", hint="MODEL_FALLBACK_REVISION=<40 hex digits>") from error
    say(f"{error}\ntaking MODEL_FALLBACK {s.model_fallback}")
    snapshot = Snapshot("model", s.model_fallback or "", s.model_fallback_revision)
    other = looks.View(view.cluster, (snapshot,))
    other.refresh([view.cluster.head])
    other.load_manifests(say)
    bring(other, snapshot, say)
    say(f"it is served only with MODEL={snapshot.repo} MODEL_REVISION={snapshot.revision}; MODEL still names {s.model}")
