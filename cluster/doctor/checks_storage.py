"""Disks, folders and weights, at a shallow look: sizes and names. `invoke verify` reads the contents."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.doctor.checks_gpu import GIB
from cluster.doctor.finding import Check, Finding, Kind, Scene, each_node
from cluster.facts.node import Facts
from cluster.facts.storage import ModelFolder

CACHE_BYTES = GIB  # compile caches and logs, as the launch's own check asks
WEIGHTS_BYTES = 180 * GIB  # 164 GiB of weights, the drafter, and room to write
IMAGE_BYTES = 40 * GIB
STALE_S = 600.0

DISK_CACHE = Kind("disk-cache", "error", "compile caches and logs are written from the first minute on", "D13", in_check=True)
DISK_STATE = Kind("disk-state", "warning", "records and logs are kept there; without space a log is lost at `down`", "G12")
DISK_WEIGHTS = Kind("disk-weights", "warning", "a download or copy with a full disk looks hung", "D13")
DISK_IMAGE = Kind("disk-image", "warning", "a pull or load of the image fails half-way", "C4")
UNWRITABLE = Kind(
    "folder-unwritable", "error", "the rank, or the copy of the weights, fails when it first writes", "B9 D9 D10", in_check=True
)
OWNER = Kind("folder-owner", "warning", "a folder that a container made as root cannot be cleaned or synchronised by the login", "D9 D10")
CACHE_SHARED = Kind("cache-shared", "error", "two ranks that compile into one shared folder overwrite each other", "D11")
WEIGHTS_SHARED = Kind("weights-shared", "info", "fine for reading; a lock file on it may wait for ever", "D5")
WEIGHTS_MISSING = Kind("weights-missing", "error", "there is nothing to load", "D1 D3", in_check=True)
WEIGHTS_INCOMPLETE = Kind(
    "weights-incomplete", "error", "loading fails minutes into the start, on this node only", "D1 D2 D3 D6 A6", in_check=True
)
HUB_LOCK = Kind("hub-lock-stale", "warning", "a download may wait for it for ever", "D5")
HUB_HALF = Kind("hub-incomplete", "warning", "a download was interrupted there; the folder beside it may look complete", "D6 D3")


def disks(facts: Facts, scene: Scene) -> Iterator[Finding]:
    folders, models = facts.storage.folders, facts.storage.models
    lacking = any(not model.complete for model in models.values()) and any(not name.path.startswith("/") for name in models.values())
    limits = {
        "cache_root": (DISK_CACHE, CACHE_BYTES, True, scene.variable(facts.role, "cache_root")),
        "state": (DISK_STATE, CACHE_BYTES // 10, True, "the home's file system"),
        "hf_home": (DISK_WEIGHTS, WEIGHTS_BYTES, lacking and scene.sparks, scene.variable(facts.role, "hf_home")),
        "docker": (DISK_IMAGE, IMAGE_BYTES, scene.docker and scene.sparks and facts.docker.image is None, "docker's data-root"),
    }
    for label, (kind, needed, asked, setting) in limits.items():
        folder = folders.get(label)
        if folder and asked and folder.free_bytes < needed:
            what = f"{_size(folder.free_bytes)} are free for {folder.path} (in {folder.real}); {_size(needed)} are needed"
            yield kind.at(facts.role, what, f"free some space there, or move it: {setting}")


def _size(count: int) -> str:
    return f"{count / GIB:.0f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def owners(facts: Facts, scene: Scene) -> Iterator[Finding]:
    uid = facts.system.login.uid
    for label in ("cache_root", "hf_home", "state"):
        folder = facts.storage.folders.get(label)
        if folder is None:
            continue
        fix = f"sudo chown -R {facts.system.login.user} {folder.real}"
        if not folder.writable:
            yield UNWRITABLE.at(facts.role, f"{folder.path}: {folder.real} belongs to uid {folder.owner}, we are {uid}", fix)
        elif uid and folder.exists and folder.owner != uid:
            yield OWNER.at(facts.role, f"{folder.path} belongs to uid {folder.owner}, we are {uid}", fix)


def shared(facts: Facts, scene: Scene) -> Iterator[Finding]:
    cache, hub = facts.storage.folders.get("cache_root"), facts.storage.folders.get("hf_home")
    if cache and cache.shared and scene.several:
        hint = f"{scene.variable(facts.role, 'cache_root')}=/a/folder/on/a/local/disk"
        yield CACHE_SHARED.at(facts.role, f"the compile caches in {cache.path} are on {cache.type}", hint)
    if hub and hub.shared:
        yield WEIGHTS_SHARED.at(facts.role, f"{hub.path} is on {hub.type}", "nothing; mount it with nconnect=8 over the fabric address")


def weights(facts: Facts, scene: Scene) -> Iterator[Finding]:
    for label, model in facts.storage.models.items():
        if not model.exists:
            yield WEIGHTS_MISSING.at(
                facts.role, f"the {label}'s folder {model.path} is not there", "invoke download on the head, invoke resync"
            )
        elif not model.complete:
            yield WEIGHTS_INCOMPLETE.at(
                facts.role, f"the {label} in {model.path}: {_lack(model)}", "invoke verify; invoke download or resync"
            )


def _lack(model: ModelFolder) -> str:
    """What an existing folder lacks."""
    if model.index is None:
        return "model.safetensors.index.json cannot be read"
    if model.missing or model.empty:
        absent = sorted({*model.missing, *model.empty})
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        return f"{len(absent)} files are missing, empty or links to nowhere ({', '.join(absent[:3])}{more}); the index names {model.named}"
    return "no config.json" if not model.config else "no weights in it"


def rests(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Lock files that nobody holds are normal a short while; downloads that nothing writes to are not."""
    old = [rest for rest in facts.storage.rests if rest.age_s > STALE_S and not rest.held]
    half = [rest for rest in old if not rest.is_lock]
    # A finished download leaves its lock files behind: only beside an unfinished file do they tell anything.
    locks = [rest for rest in old if rest.is_lock] if half else []
    if half:
        size, age = _size(sum(rest.bytes for rest in half)), min(rest.age_s for rest in half) / 60
        what = f"{len(half)} unfinished files, {size}, the newest {age:.0f} min old: {half[0].path}"
        yield HUB_HALF.at(facts.role, what, "invoke download goes on with it; invoke verify")
    if locks:
        yield HUB_LOCK.at(
            facts.role, f"{len(locks)} lock files that no process holds, such as {locks[0].path}", "rm them when no download runs"
        )


CHECKS: tuple[Check, ...] = tuple(map(each_node, (disks, owners, shared, weights, rests)))
