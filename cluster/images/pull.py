"""Fetching the image of IMAGE from its registry to the head."""

from __future__ import annotations

from cluster.errors import BadSettings, LaunchError
from cluster.execute import Answer
from cluster.images import explain, judge, stamp
from cluster.images.identity import Image, local_only, pinned, read, tag_of
from cluster.images.work import Site, last_line
from cluster.settings import ROOT


def pull(site: Site, *, force: bool = False) -> Image:
    """The image on the head, fetched if need be. What was built from this checkout is never replaced without `force`.

    Without a network, the image that is there under the name (or, for a digest, under any name) is the answer, with a note.
    Raises LaunchError with the cause in words, BadSettings for a name that no registry has.
    """
    name = site.settings.image
    if local_only(name):
        what = f"IMAGE={name} is a name for images that are made here; it is never pulled"
        raise BadSettings(what, hint="invoke build; or name an image of a registry: IMAGE=HOST/REPOSITORY@sha256:...")
    tag, checkout = tag_of(name), stamp.current(ROOT, site.settings.build_base)
    before = site.look(tag, [site.head])[0][site.head]
    if before and not force and (why := _kept(name, before, checkout)):
        site.say(f"{site.cluster.at(site.head)}{tag} stays: {why} (identity {before.short}); --force pulls all the same")
        return before
    image = _pulled(site, name, tag, before)
    for note in judge.findings(name, image, {}, checkout):
        site.say(f"note: {note}")
    return image


def _kept(name: str, before: Image, checkout: str | None) -> str:
    """Why a pull would be wrong or needless."""
    if pinned(name):
        return "it is the image of that digest"
    return "it was built from this checkout" if before.stamp and before.stamp == checkout else ""


def _pulled(site: Site, name: str, tag: str, before: Image | None) -> Image:
    site.say(f"{site.cluster.at(site.head)}pulling {name}")
    step = site.step(site.head, "images_pull", f"docker pull {name}", image=name, tag=tag)
    answer = site.long([step], last_line).all_or_raise("pulling")[site.head]
    image = read(tag, answer["image"])
    if answer["code"] != 0:
        return _instead(site, name, answer, image or before)
    assert image is not None
    site.say(f"{site.cluster.at(site.head)}pulled {image.digest or name}, identity {image.short}, {image.size_bytes / 1e9:.2f} GB")
    if before and before.identity != image.identity:
        site.say(f"note: the image that had this name before is still there: docker tag {before.id} {untouched(tag)}")
    return image


def untouched(tag: str) -> str:
    """A name for a former image that hides nothing."""
    return f"{tag}-former" if ":" in tag.rpartition("/")[2] else f"{tag}:former"


def _instead(site: Site, name: str, answer: Answer, local: Image | None) -> Image:
    """The local image, when only the network is missing. Raises LaunchError else."""
    cause = explain.kind(answer["lines"])
    what, hint = explain.reason(cause, name, answer["logged_in"])
    if local is None or (cause != "network" and not pinned(name)):
        raise LaunchError(what, node=site.head, ran=f"docker pull {name}", tail=answer["lines"], hint=hint)
    same = "it has that digest" if pinned(name) else "nobody knows whether the registry's is newer"
    site.say(f"note: {what}; the image that is there stays, identity {local.short}: {same}")
    return local
