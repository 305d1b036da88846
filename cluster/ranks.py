"""Ranks: one process or container per node, rank 0 on the head. How each is started, whichever engine and runtime."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster import kits, weights
from cluster.fields import NodeSettings, Settings
from cluster.kits import Kit
from cluster.settings import ROOT, Effective


@dataclass(frozen=True)
class Rank:
    """One rank of a launch: its number, the role of its node, that node's settings, and the launch it belongs to."""

    number: int
    role: str
    node: NodeSettings
    settings: Settings
    kit: Kit

    @property
    def size(self) -> int:
        return len(self.kit.nodes)

    @property
    def name(self) -> str:
        """How the rank's record, log and container are called on its node."""
        return f"spark-lab-{self.role}"


def ranks(effective: Effective) -> tuple[Rank, ...]:
    """All ranks of a kit in order; rank 0 is the head."""
    settings, kit = effective.settings, effective.kit
    return tuple(Rank(number, role, settings.node(role), settings, kit) for number, role in enumerate(kit.nodes))


@dataclass(frozen=True)
class Launch:
    """How a rank is started: words, variables, secret variables (never in argv, shown as ***), folders to make first."""

    rank: Rank
    runtime: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    folders: tuple[str, ...] = ()
    cwd: str = "~"

    def shown(self) -> str:
        """The command as a person would type it; secrets masked, variables only where they are not in argv already."""
        variables = {**({} if self.runtime == "docker" else self.env), **dict.fromkeys(self.secrets, "***")}
        return " ".join(map(_quoted, [*(f"{name}={value}" for name, value in variables.items()), *self.argv]))


def _quoted(word: str) -> str:
    """The word as a shell would take it; a leading ~/ stays outside the quotes, where it means the home folder."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and word != "~/" else shlex.quote(word)


def launch(rank: Rank) -> Launch:
    """The launch of a rank by its kit's engine."""
    from cluster.engines import llama, vllm

    settings = rank.settings
    if rank.kit.engine == "llama":
        model = weights.cache_dir() / weights.SMOLLM2.file_name
        secrets = {"LLAMA_API_KEY": settings.vllm_api_key} if settings.vllm_api_key else {}
        return Launch(rank, "process", llama.argv(settings, model), {}, secrets, cwd=str(ROOT))
    secrets = {"VLLM_API_KEY": settings.vllm_api_key} if settings.vllm_api_key and rank.number == 0 else {}
    if settings.runtime == "docker":
        return Launch(rank, "docker", vllm.docker_run(rank), {}, secrets, vllm.cache_folders(rank))
    command = f"{rank.node.venv}/bin/vllm"
    env = {"HF_HOME": rank.node.hf_home, "VLLM_CACHE_ROOT": f"{rank.node.cache_root}/vllm", **vllm.environment(rank)}
    return Launch(rank, "process", (command, *vllm.serve(rank)), env, secrets, vllm.cache_folders(rank))


def record(rank: Rank, effective: Effective, boot: str, image: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is remembered of a started rank, on its node. Holds no secret. `image`: what its node's IMAGE is (identity.summary)."""
    from cluster.engines import llama

    settings, kit = effective.settings, effective.kit
    listens = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    address = listens if kit.topology == "single" else settings.node("head").ip
    licence = next((pack.licence for pack in kits.checkpoints().values() if pack.repo == settings.model), None)
    served: dict[str, Any] = {"source": settings.model, "revision": settings.model_revision, "licence": licence}
    if kit.engine == "llama":
        served = {"source": weights.SMOLLM2.requirement, "file": weights.SMOLLM2.file_name, "sha256": weights.SMOLLM2.sha256}
    return {
        "boot": boot,
        "kit": kit.name,
        "rank": rank.number,
        "role": rank.role,
        "port": settings.port if rank.number == 0 else None,
        "health_url": f"http://{listens}:{settings.port}/health" if rank.number == 0 else None,
        "base_url": f"http://{address}:{settings.port}",
        "model": settings.served_model_name,
        "settings": effective.fingerprint(),
        "engine": llama.version() if kit.engine == "llama" else f"vllm in {settings.image}",
        "image": image,
        "weights": served,
    }
