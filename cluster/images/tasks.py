"""The tasks build, pull and ship. Each is parsing, one call, printing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import cli
from cluster.settings import load

_KIT = {"kit": "a name from kits/ (default: KIT; spark2 where .env names a WORKER_IP; else local)"}


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _dry(ctx: Any, kit: str | None, words: str) -> bool:
    """Whether `invoke --dry` asks only for what would be done; then it is printed."""
    if not ctx.config.run.dry:
        return False
    effective = load({"kit": kit})
    print(f"kit {effective.kit.name}, IMAGE={effective.settings.image}: {words}")
    return True


@contextlib.contextmanager
def _locked(kit: str | None, **flags: str | None) -> Iterator[tuple[Any, str]]:
    """The cluster with its launch lock, and the lock's token; no container is needed for that."""
    from cluster import session

    with session.opened(load({"kit": kit, **flags})) as cluster, session.locked(cluster) as token:
        yield cluster, token


@cli.task(help={**_KIT, "base": "base image instead of the Dockerfile's own (BUILD_BASE)", "force": "build even if nothing changed"})
def build(ctx: Any, kit: str | None = None, base: str | None = None, force: bool = False) -> None:
    """Build IMAGE on the head from Dockerfile and overlay/, if these have changed."""
    if _dry(ctx, kit, "docker build on the head, if the stamp of Dockerfile and overlay/ differs from the image's"):
        return
    from cluster.images import build, work

    with _locked(kit, build_base=base) as (cluster, token):
        build.build(work.site(cluster, token, _say), force=force)


@cli.task(help={**_KIT, "force": "pull even what is there, or was built here"})
def pull(ctx: Any, kit: str | None = None, force: bool = False) -> None:
    """Fetch IMAGE from its registry to the head; print the digest to pin."""
    if _dry(ctx, kit, "docker pull on the head, unless it was built from this checkout or is pinned and there"):
        return
    from cluster.images import pull, work

    with _locked(kit) as (cluster, token):
        pull.pull(work.site(cluster, token, _say), force=force)


@cli.task(help={**_KIT, "archive": "load this `docker save` archive on the head first", "force": "send to every worker, replace names"})
def ship(ctx: Any, kit: str | None = None, archive: str | None = None, force: bool = False) -> None:
    """Bring the head's IMAGE to every worker whose image differs, and verify it."""
    if _dry(ctx, kit, "docker save on the head, docker load on every worker whose layers differ, compared afterwards"):
        return
    from cluster.images import ensure

    with _locked(kit) as (cluster, token):
        ensure.ship_all(cluster, token, _say, archive=archive, force=force)
