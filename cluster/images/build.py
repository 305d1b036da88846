"""Building the image of IMAGE on the head from this checkout, when its sources have changed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from cluster.errors import BadSettings, LaunchError
from cluster.images import explain, judge, stamp
from cluster.images.identity import OWN, STAMP, Image, local_only, pinned, read, too_deep
from cluster.images.work import Site, last_line
from cluster.settings import ROOT

BASE_NAME = "org.opencontainers.image.base.name"  # label: what the image was built on, as it was named


def build(site: Site, *, root: Path = ROOT, force: bool = False) -> Image:
    """The image on the head, built if its stamp is not that of the sources in `root`.

    Raises BadSettings when IMAGE names a digest, or an image that this tool did not build (`force` takes its name away), and
    LaunchError with the last lines when the build fails; then no name has changed.
    """
    name, base = site.settings.image, site.settings.build_base
    if pinned(name):
        raise BadSettings(f"IMAGE={name} is a fixed image of a registry: a build cannot make it", hint="IMAGE=NAME:TAG invoke build")
    found = stamp.sources(root)
    mark = stamp.stamp(found, base)
    before = site.look(name, [site.head])[0][site.head]
    if before and not force:
        if before.stamp == mark:
            site.say(f"{site.cluster.at(site.head)}{name} is built from these sources already (stamp {mark}, identity {before.short})")
            return before
        if before.stamp is None:
            what = f"{name} on this node was not built by this tool (no label {STAMP})"
            raise BadSettings(f"{site.head}: {what}", hint="another name in IMAGE; or --force, which takes the name away from it")
    image = _built(site, name, mark, found)
    for note in judge.findings(name, image, {}, mark):
        site.say(f"note: {note}")
    return image


def _built(site: Site, name: str, mark: str, found: stamp.Sources) -> Image:
    given, context = site.settings.build_base, stamp.tar(found)
    args, base = {"BASE": given} if given else {}, stamp.base_of(found, given)
    labels = {STAMP: mark} | ({BASE_NAME: base} if base else {})
    site.say(f"{site.cluster.at(site.head)}building {name} from {len(found)} files, {len(context) / 1e6:.1f} MB (stamp {mark})")
    shown = " ".join(["docker build", f"--tag {name}", f"--label {STAMP}={mark}", *(f"--build-arg {n}={v}" for n, v in args.items()), "-"])
    more: dict[str, Any] = {"tag": name, "own": f"{OWN}build:{mark}", "labels": labels, "args": args}
    step = site.step(site.head, "images_build", shown, context=base64.b64encode(context).decode(), **more)
    answer = site.long([step], last_line).all_or_raise("building")[site.head]
    image = read(name, answer["image"])
    if image is None:
        cause = explain.kind(answer["lines"])
        hint = f"the whole log on that node: {step.request['log']}"
        if cause in ("network", "missing", "denied"):
            hint += "; a base image that is there already: BUILD_BASE=NAME:TAG (a name with a digest is looked up in the network)"
        elif cause != "unknown":
            hint += f"; {explain.reason(cause, name)[1]}"
        raise LaunchError(f"the build of {name} failed (exit {answer['code']})", node=site.head, ran=shown, tail=answer["lines"], hint=hint)
    site.say(f"{site.cluster.at(site.head)}built {name}: identity {image.short}, {len(image.layers)} layers, log {step.request['log']}")
    if deep := too_deep(image):
        site.say(f"note: {deep}: invoke ship will refuse it")
    if moves := movable(base):
        site.say(f"note: {moves}")
    return image


def movable(base: str | None) -> str | None:
    """What is to be said of a base image that is another registry's tag: a second build may be on another base."""
    if base is None or pinned(base) or local_only(base):
        return None
    read = f"docker buildx imagetools inspect {base}"
    return f"the base {base} is a tag, which its owner can move to another build; BUILD_BASE={base}@sha256:... pins it ({read} shows it)"
