"""Every node has the same image: what `up` and `invoke ship` see to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cluster.errors import BadSettings, LaunchError
from cluster.images import judge, stamp
from cluster.images.identity import Image, read, tag_of
from cluster.images.pull import pull
from cluster.images.ship import ship
from cluster.images.work import Site, last_line, site
from cluster.session import Cluster
from cluster.settings import ROOT


def settle(cluster: Cluster, token: str, say: Callable[[str], None], facts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Pull the image to a head that lacks it and ship it to the workers whose image differs; whether anything was done.

    `facts`: the answers of the check before a launch, which already refused what cannot be put right. SKIP_PULL: only look.
    """
    effective = cluster.effective
    found = judge.images(effective, facts)
    if not found:
        return False
    source = found[cluster.head]
    work = Site(cluster, token, say)
    before = source
    if source is None:
        source = pull(work)
    roles = judge.to_ship(effective, {**found, cluster.head: source})
    if roles:
        ship(work, source, roles)
    for note in judge.findings(effective.settings.image, source, found, stamp.current(ROOT, effective.settings.build_base)):
        say(f"note: {note}")
    return before is None or bool(roles)


def ship_all(cluster: Cluster, token: str, say: Callable[[str], None], *, archive: str | None = None, force: bool = False) -> None:
    """`invoke ship`: the head's image (from an archive on the head, if one is named) to every worker whose image differs."""
    work = site(cluster, token, say)
    tag = tag_of(work.settings.image)
    if archive:
        _load(work, tag, archive, force)
    found, _ = work.look(tag, cluster.effective.kit.nodes)
    source = found[work.head]
    if source is None:
        raise LaunchError(
            f"there is no image {tag} to ship", node=work.head, hint="invoke build, invoke pull, or invoke ship --archive FILE.tar"
        )
    roles = [*work.workers] if force else judge.to_ship(cluster.effective, found)
    if roles:
        ship(work, source, roles)
    for role in [role for role in work.workers if role not in roles]:
        say(f"{role}: has the head's image already (identity {source.short})")


def _load(work: Site, tag: str, archive: str, force: bool) -> None:
    """Load the archive on the head, unless what it holds is there. Raises BadSettings when it is not plain which image is meant."""
    seen = work.ask(work.step(work.head, "images_archive", f"read {archive}", archive=archive))["images"]
    meant = [image for image in seen if tag in image["names"]] or seen
    if len(meant) != 1:
        names = ", ".join(name for image in seen for name in image["names"]) or f"{len(seen)} images without a name"
        raise BadSettings(f"{archive} holds {names}, and none of them is {tag}", hint="name one of them in IMAGE")
    before = work.look(tag, [work.head])[0][work.head]
    layers = tuple(meant[0]["layers"])
    if before and before.layers == layers:
        work.say(f"{work.cluster.at(work.head)}{tag} is the archive's image already (identity {before.short})")
        return
    if before and not force:
        what = f"{tag} on this node is another image than the archive's"
        raise BadSettings(f"{work.head}: {what}", hint="another name in IMAGE; or --force, which takes the name away from it")
    _loaded(work, tag, archive, layers)


def _loaded(work: Site, tag: str, archive: str, layers: tuple[str, ...]) -> Image:
    work.say(f"{work.cluster.at(work.head)}loading {archive}")
    step = work.step(work.head, "images_load", f"docker load --input {archive}", archive=archive, layers=list(layers), tag=tag)
    answer = work.long([step], last_line).all_or_raise("loading the archive")[work.head]
    image = read(tag, answer["image"])
    if image is None:
        hint = "docker system df; is the archive whole? tar -tf"
        raise LaunchError("docker did not load the archive", node=work.head, ran=step.shown, tail=answer["lines"], hint=hint)
    work.say(f"{work.cluster.at(work.head)}loaded {tag}: identity {image.short}")
    return image
