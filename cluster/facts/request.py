"""What is asked of a node: one request for everything that doctor judges."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cluster.engines import vllm
from cluster.facts import nccl
from cluster.plan import Step, request, run_dir
from cluster.ranks import Rank, launch


def facts_step(rank: Rank, known: Mapping[str, Any] = MappingProxyType({})) -> Step:
    """The one request that reads everything on a rank's node. known: images by id whose NCCL library need not be read again."""
    s, model = rank.settings, vllm.model_folders(rank) if rank.kit.engine == "vllm" else ()
    how = launch(rank)
    ports = [s.port, s.master_port] if rank.number == 0 and rank.size > 1 else [s.port] if rank.number == 0 else []
    folders = {"state": run_dir(rank), "hf_home": rank.node.hf_home, "cache_root": rank.node.cache_root}
    addresses = [s.node(role).ip for role in rank.kit.nodes if role != rank.role]
    more = {
        "peers": [address for address in addresses if address],
        "image": s.image if how.runtime == "docker" else None,
        "ports": ports,
        "folders": folders if rank.kit.engine == "vllm" else {"state": folders["state"]},
        "models": dict(zip(("model", "drafter"), model, strict=False)),
        "hub": rank.node.hf_home if rank.kit.engine == "vllm" else None,
        "nccl": nccl.wanted(rank, known),
    }
    return Step(rank.role, "read the node's state; nothing is changed", request(rank, "facts_collect", **more), 40)
