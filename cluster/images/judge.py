"""What is in the way of a launch because of images, and what is worth knowing. Pure: settings and images in, words out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.errors import LaunchError
from cluster.images.identity import Image, differences, local_only, pinned, read, tag_of, too_deep, untagged
from cluster.settings import Effective

Images = Mapping[str, Image | None]


def images(effective: Effective, facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Image | None]:
    """The image of IMAGE on every node, from the answers of the agents' preflight; nothing for kits without containers."""
    if effective.settings.runtime != "docker":
        return {}
    tag = tag_of(effective.settings.image)
    return {role: read(tag, seen["image"]) for role, seen in facts.items() if not seen["docker_error"]}


def to_pull(effective: Effective, found: Images) -> bool:
    """Whether the head lacks the image."""
    head = effective.kit.nodes[0]
    return head in found and found[head] is None


def to_ship(effective: Effective, found: Images) -> list[str]:
    """The workers whose image is not the head's; none as long as the head has none."""
    source = found.get(effective.kit.nodes[0])
    if source is None:
        return []
    return [role for role, image in found.items() if image is None or image.identity != source.identity]


def problems(effective: Effective, found: Images) -> list[LaunchError]:
    """What a launch with these settings does not put right by itself, node by node."""
    s, head = effective.settings, effective.kit.nodes[0]
    tag, source = tag_of(s.image), found.get(effective.kit.nodes[0])
    if to_pull(effective, found):
        missing = [head] if local_only(s.image) else [role for role, image in found.items() if image is None] if s.skip_pull else []
        return [_missing(role, s.image, tag) for role in missing]
    shipped = to_ship(effective, found)
    if source and shipped and not s.skip_pull:
        deep = too_deep(source)
        return [LaunchError(deep, node=head, hint="squash some layers: fewer RUN and COPY lines in the Dockerfile")] if deep else []
    return [_differs(role, image, source) if (image := found[role]) and source else _missing(role, s.image, tag) for role in shipped]


def _missing(role: str, name: str, tag: str) -> LaunchError:
    made = "invoke build makes it on the head" if local_only(name) else "invoke pull fetches it"
    hint = f"{made}, invoke ship brings it to the workers; without a network: invoke ship --archive FILE.tar"
    return LaunchError(f"there is no image {tag}", node=role, ran=f"docker image inspect {tag}", hint=hint)


def _differs(role: str, image: Image, source: Image) -> LaunchError:
    what = f"the image {image.name} is another one than the head's: identity {image.short}, on the head {source.short}"
    return LaunchError(what, node=role, ran=f"docker image inspect {image.name}", hint="invoke ship; or leave SKIP_PULL out")


def findings(name: str, source: Image, found: Images, stamp: str | None) -> list[str]:
    """What is worth knowing of images with which a launch can go on. `stamp`: of this checkout's sources; None: there are none."""
    notes = []
    if not local_only(name) and not pinned(name):
        notes.append(f"IMAGE={name} names a tag, which its owner can move to another build{_pin(name, source)}")
    if source.stamp and stamp and source.stamp != stamp:
        notes.append(f"{source.name} was built from other sources ({source.stamp}) than this checkout's ({stamp}): invoke build")
    if source.baked:
        notes.append(
            f"{source.name} has variables of the fabric inside: {' '.join(source.baked)}; they hold unless a setting replaces them"
        )
    for role, image in found.items():
        if image and image.identity == source.identity and (what := differences(source, image)):
            notes.append(f"{role}: {image.name} has the head's layers, but not its configuration ({'; '.join(what)}): invoke ship --force")
    return notes


def _pin(name: str, image: Image) -> str:
    """The words that pin what is there now."""
    mine = [digest for digest in image.digests if untagged(digest) == untagged(name)]
    return f"; to keep this one: IMAGE={mine[0]}" if mine else ""
