"""Docker on a node: whether it answers, what it is, the image, the containers. From its own JSON output."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.facts.raw import Raw, parsed


@dataclass(frozen=True)
class Image:
    """layers: the diff-ids, the same on every node and after save and load, as the id is not. env: baked variables."""

    id: str
    layers: tuple[str, ...]
    digests: tuple[str, ...]
    architecture: str | None
    user: str
    env: Mapping[str, str]

    @property
    def key(self) -> str:
        """A short name for the image's content."""
        return hashlib.sha256(",".join(self.layers).encode()).hexdigest()[:16] if self.layers else self.id[-16:]


@dataclass(frozen=True)
class Container:
    """record: what this tool noted when it started it; None: it did not."""

    id: str
    name: str
    state: str
    image: str
    record: Mapping[str, Any] | None
    restart: str
    gpu: bool

    @property
    def running(self) -> bool:
        return self.state in ("running", "restarting", "paused")


@dataclass(frozen=True)
class Docker:
    """installed: the docker command is on the PATH. problem: why it does not answer. image: None when the node lacks it."""

    installed: bool
    problem: str | None
    version: str | None
    rootless: bool | None
    runtimes: tuple[str, ...] | None
    image: Image | None
    containers: tuple[Container, ...]

    @property
    def answers(self) -> bool:
        return self.installed and self.problem is None


def parse(raw: Raw) -> Docker:
    installed = "docker-info" in raw.runs
    told = raw.data("docker-info")
    info = told if isinstance(told, dict) else {}
    problem = raw.error("docker-info") or "; ".join(info.get("ServerErrors") or ()) or None  # some versions fail with exit 0
    options = info.get("SecurityOptions")
    runtimes = info.get("Runtimes")
    return Docker(
        installed, problem, info.get("ServerVersion"), None if options is None else any("rootless" in option for option in options),
        None if runtimes is None else tuple(sorted(runtimes)), _image(parsed(raw.out("image"))), _containers(raw.out("containers")),
    )  # fmt: skip


def _image(row: Any) -> Image | None:
    if not isinstance(row, dict):
        return None
    env = dict(word.partition("=")[::2] for word in row.get("env") or ())
    digests = tuple(row.get("digests") or ())
    return Image(str(row.get("id")), tuple(row.get("layers") or ()), digests, row.get("arch"), row.get("user") or "", env)


def _containers(text: str | None) -> tuple[Container, ...]:
    rows = [row for line in (text or "").splitlines() if isinstance(row := parsed(line), dict)]
    return tuple(
        Container(
            str(row.get("id")), str(row.get("name", "")).lstrip("/"), str(row.get("state")), str(row.get("image")),
            parsed(row.get("record")), str(row.get("restart") or "no"), bool(row.get("gpu")),
        )
        for row in rows
    )  # fmt: skip
