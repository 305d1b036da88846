"""What an image is, read from `docker image inspect`. Pure.

The identity is the sha256 over the diff ids of the layers. The Id of an image is none: it differs between docker's two image stores
for the same content. Repository digests are none either: they are lost in `docker save | docker load`. What a build says about an
image beyond its layers (entry point, command, environment, folder, user) is compared too, and a difference is a finding.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OWN = "spark-lab/"  # names that this tool gives: no registry has them
STAMP = "spark-lab.stamp"  # label: the sources an image was built from (stamp.py)
MOST_LAYERS = 127  # `docker load` and further builds fail beyond it: max depth exceeded
_BEHAVIOUR = ("Entrypoint", "Cmd", "Env", "WorkingDir", "User")
_BAKED = ("NCCL_", "GLOO_")


@dataclass(frozen=True)
class Image:
    """One image on one node. `layers`: diff ids, lowest first. `digests`: REPO@sha256:... of the registries it came from."""

    name: str
    id: str
    layers: tuple[str, ...]
    digests: tuple[str, ...]
    stamp: str | None
    platform: str
    size_bytes: int
    behaviour: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """64 hexadecimal digits, the same wherever the layers are the same."""
        return hashlib.sha256("\n".join(self.layers).encode()).hexdigest()

    @property
    def short(self) -> str:
        """How messages name the identity."""
        return self.identity[:16]

    @property
    def digest(self) -> str | None:
        """The digest in a registry, the first one by name; None for an image that was built or loaded here."""
        return min(self.digests, default=None)

    @property
    def baked(self) -> list[str]:
        """NAME=VALUE of NCCL and Gloo variables inside the image: they win over what the nodes' own defaults would be."""
        return [word for word in self.behaviour["Env"] if word.startswith(_BAKED)]


def read(name: str, inspected: Mapping[str, Any] | None) -> Image | None:
    """The image of one entry of `docker image inspect`; None when there is none. Absent and empty fields are the same."""
    if inspected is None:
        return None
    config = inspected.get("Config") or {}
    behaviour = {field: config.get(field) or ([] if field in ("Entrypoint", "Cmd", "Env") else "") for field in _BEHAVIOUR}
    parts = (inspected.get("Os"), inspected.get("Architecture"), inspected.get("Variant"))
    return Image(
        name,
        inspected["Id"],
        tuple((inspected.get("RootFS") or {}).get("Layers") or ()),
        tuple(inspected.get("RepoDigests") or ()),
        (config.get("Labels") or {}).get(STAMP),
        "/".join(part for part in parts if part),
        inspected.get("Size") or 0,
        behaviour,
    )


def differences(one: Image, other: Image) -> list[str]:
    """`FIELD: one -> other` for what the two images do differently although their layers may be the same."""
    found = []
    for field in _BEHAVIOUR:
        a, b = one.behaviour[field], other.behaviour[field]
        if field == "Env":
            a, b = sorted(set(a) - set(b)), sorted(set(b) - set(a))
        if a != b:
            found.append(f"{field}: {a} -> {b}")
    return found


def too_deep(image: Image) -> str | None:
    """Why the image cannot be loaded elsewhere, or None."""
    if len(image.layers) <= MOST_LAYERS:
        return None
    return f"{image.name} has {len(image.layers)} layers; docker loads at most {MOST_LAYERS} (max depth exceeded)"


def summary(image: Image) -> dict[str, Any]:
    """What a run record keeps of an image."""
    return {"identity": image.identity, "id": image.id, "digest": image.digest, "stamp": image.stamp}


# names


def local_only(name: str) -> bool:
    """Whether the name means an image that is made here: no registry is asked for it."""
    return "/" not in name or name.startswith(OWN)


def pinned(name: str) -> bool:
    """Whether the name holds a digest."""
    return "@" in name


def tag_of(name: str) -> str:
    """What the nodes call the image: its name; for one with a digest, a tag made of it, because a loaded image has no digest."""
    repository, at, digest = name.partition("@")
    return f"{untagged(repository)}:pinned-{digest.removeprefix('sha256:')[:16]}" if at else name


def untagged(name: str) -> str:
    """The repository of `REPO[:TAG][@DIGEST]`; a port of the registry is no tag."""
    return re.sub(r":[^:/]*$", "", name.partition("@")[0])


def registry(name: str) -> str:
    """The host that a pull of the name asks."""
    first, slash, _ = name.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def travelling(image: Image) -> str:
    """The name under which the image is sent to the workers: it says what must arrive."""
    return f"{OWN}ship:{image.short}"
