"""Which NCCL library each rank loads, by content; what was read of an image is remembered by the image's id."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import state
from cluster.engines import vllm
from cluster.facts.raw import Raw, parsed
from cluster.ranks import Rank, launch

RING_MARK = "SWITCHLESS_RING_ONLY"  # a word in the patched library of the ring, in no other
SUBNET_MARK = "NCCL_IB_SUBNET_AWARE_ROUTING"
MARKS = (RING_MARK, SUBNET_MARK)
# Where torch's package puts it, then where a distribution's package does; MACHINE is what `uname -m` says.
_SYSTEM = "/usr/lib/MACHINE-linux-gnu/libnccl.so.2"
_LIMIT_S = 25  # some hundred MB through docker's socket, once for an image; the whole look may take 40
_VENV = "lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"


@dataclass(frozen=True)
class Library:
    """One libnccl.so.2. version: NCCL's own text, with the CUDA version behind `+`. marks: those of MARKS that it holds."""

    path: str
    sha256: str
    size_bytes: int
    version: str | None
    marks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.version or 'version unknown'} sha256 {self.sha256[:12]}"


@dataclass(frozen=True)
class Nccl:
    """libraries: of the image or venv, the one that torch loads first; None: not known. host: the patched library, where it is set.

    host_problem: why the patched library could not be read; None also when it is not set.
    """

    libraries: tuple[Library, ...] | None = None
    host: Library | None = None
    host_path: str | None = None
    host_problem: str | None = None
    problem: str | None = None

    @property
    def loaded(self) -> Library | None:
        """What the rank loads: the patched library lies over the image's."""
        return self.host if self.host_path else self.libraries[0] if self.libraries else None


def wanted(rank: Rank, known: Mapping[str, Any]) -> dict[str, Any] | None:
    """The agent's request for a rank; None where ranks have no collectives between nodes."""
    if rank.kit.engine != "vllm" or rank.size == 1:
        return None
    s, docker = rank.settings, launch(rank).runtime == "docker"
    own = vllm.NCCL_LIBRARY if docker else f"{rank.node.venv}/{_VENV}"
    host = f"{s.nccl_host_dir}/{s.nccl_so_name}" if s.use_host_nccl else None
    image = s.image if docker else None
    return {"image": image, "paths": [own, _SYSTEM], "known": sorted(known), "host": host, "marks": list(MARKS), "limit_s": _LIMIT_S}


def parse(raw: Raw) -> Nccl:
    told = raw.node.get("nccl")
    if not told:
        return Nccl()
    listed, host = told.get("libraries"), told.get("host") or {}
    found = None if listed is None else tuple(_library(each) for each in listed if "sha256" in each)
    return Nccl(found, _library(host) if "sha256" in host else None, host.get("path"), host.get("problem"), told.get("problem"))


def _library(row: Mapping[str, Any]) -> Library:
    return Library(row["path"], row["sha256"], row["bytes"], row["version"], tuple(row["marks"]))


# What is remembered: an image's id names its content, so it is read once and not at every look.


def _file(kit: str) -> Path:
    return state.run_dir(kit) / "nccl.json"


def remembered(kit: str) -> dict[str, Any]:
    """Image id -> its libraries, as far as they were looked at for the same paths and marks."""
    try:
        told = parsed(_file(kit).read_text())
    except OSError:
        return {}
    return dict(told["images"]) if isinstance(told, dict) and told.get("asked") == _asked() else {}


def _asked() -> list[str]:
    return [vllm.NCCL_LIBRARY, _SYSTEM, *MARKS]


def completed(kit: str, answers: Mapping[str, Mapping[str, Any]], known: Mapping[str, Any]) -> None:
    """Put what is remembered into the answers that left it out, and remember what they found. Never raises: it is only time saved."""
    told = [answer["node"]["nccl"] for answer in answers.values() if answer["node"].get("nccl")]
    new = {each["image"]: each["libraries"] for each in told if each["image"] and each["libraries"]}
    for each in told:
        if each["libraries"] is None:
            each["libraries"] = known.get(each["image"])
    if new:
        _remember(kit, {**known, **new})


def _remember(kit: str, images: Mapping[str, Any]) -> None:
    file = _file(kit)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"asked": _asked(), "images": dict(list(images.items())[-8:])}))
        part.replace(file)
    except OSError:
        return
