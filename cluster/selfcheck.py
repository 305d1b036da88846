"""`python -m vllm_glm_exl3.selfcheck` in the image of every node, before a launch that needs the plugin: does every execution path
compute what its reference does, on that node's own GPU? A wrong build would serve fluent nonsense.

What passed is remembered on the node with the image's identity and the command, so the next start does not pay for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from cluster.engines import vllm
from cluster.errors import LaunchError
from cluster.images.identity import Image, tag_of
from cluster.images.work import Site, last_line
from cluster.plan import Step, run_dir
from cluster.ranks import Rank
from cluster.session import Cluster
from cluster.settings import Effective

MODULE = "vllm_glm_exl3.selfcheck"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_READ = re.compile(r"(EXL3_|GLM53_|ABLIT|PYTHON|LD_|CUDA_|VLLM_MEMORY_PROFILER_)")


def wanted(effective: Effective) -> bool:
    """The kit's containers need the plugin: for EXL3 weights, or for an edit at load."""
    s = effective.settings
    return effective.kit.engine == "vllm" and s.runtime == "docker" and not s.skip_selfcheck and (s.quantization == "exl3" or s.ablit == 1)


def container(rank: Rank) -> str:
    return f"{rank.name}-selfcheck"


def argv(rank: Rank) -> tuple[str, ...]:
    """`docker run` with the rank's own flags, mounts and variables: what is checked is what will serve. It ends by itself."""
    s = rank.settings
    python = PurePosixPath(s.image_entrypoint).with_name("python3")  # beside the vllm command, wherever that is
    words = ["docker", "run", "--rm", "--name", container(rank), *vllm.attached(rank)]
    return (*words, "--entrypoint", str(python), tag_of(s.image), "-m", MODULE)


def key(rank: Rank, image: Image) -> str:
    """Of what the outcome can depend on: the image, the mounts, and the variables that the plugin reads."""
    read = [word for word in argv(rank) if not _VARIABLE.match(word) or _READ.match(word)]
    return hashlib.sha256(json.dumps([image.identity, read]).encode()).hexdigest()


def step(rank: Rank) -> Step:
    """As a plan shows it."""
    what = f"python3 -m {MODULE} in {tag_of(rank.settings.image)}, with the mounts and variables of the rank"
    return Step(rank.role, f"unless it passed with this image before: {what}", {})


def run(cluster: Cluster, token: str, say: Callable[[str], None], images: Mapping[str, Image | None]) -> None:
    """Every node's selfcheck, at the same time. Says one line; raises LaunchError with the reason of every node that failed."""
    if not wanted(cluster.effective):
        return
    site = Site(cluster, token, say)
    checked = [(rank, image) for rank in cluster.ranks if (image := images.get(rank.role)) is not None]
    say("selfcheck of the plugin in the image of every node (a minute; what passed is remembered)")
    results = site.long([_request(site, rank, image) for rank, image in checked], last_line)
    answers = results.all_or_raise("the selfcheck of the plugin")
    failed = [rank for rank, _ in checked if answers[rank.role]["code"] != 0]
    if failed:
        raise _failure(failed[0], answers[failed[0].role]["lines"], [rank.role for rank in failed])
    cached = all(answer["cached"] for answer in answers.values())
    say(f"selfcheck: {'passed before with this image' if cached else 'every execution path computes what its reference does'}")


def _request(site: Site, rank: Rank, image: Image) -> Step:
    shown, note = f"python -m {MODULE} in {tag_of(rank.settings.image)}", f"{run_dir(rank)}/selfcheck.json"
    more: dict[str, Any] = {"argv": argv(rank), "key": key(rank, image), "note": note, "container": container(rank)}
    return site.step(rank.role, "images_selfcheck", shown, **more)


def _failure(rank: Rank, lines: list[str], roles: list[str]) -> LaunchError:
    missing = any("No module named" in line and MODULE.partition(".")[0] in line for line in lines)
    what = f"the image {rank.settings.image} has no plugin vllm-glm-exl3" if missing else "the selfcheck of the plugin failed"
    where = f"{what} (on {', '.join(roles)})" if len(roles) > 1 else what
    hint = "invoke build, invoke ship" if missing else "invoke build from this checkout, invoke ship"
    return LaunchError(where, node=rank.role, ran=" ".join(argv(rank)), tail=lines, hint=f"{hint}; --skip-selfcheck starts without it")
