"""What `docker image inspect` says of one image in docker's two stores, shortened; and images made from few words."""

from __future__ import annotations

from typing import Any

from cluster.images.identity import Image, read

LAYERS = ["sha256:" + "a" * 64, "sha256:" + "b" * 64]
CLASSIC: dict[str, Any] = {  # overlay2: the Id is the digest of the configuration
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["ghcr.io/site/glm:1"],
    "RepoDigests": ["ghcr.io/site/glm@sha256:" + "d" * 64],
    "Os": "linux",
    "Architecture": "arm64",
    "Variant": "v8",
    "Size": 14_000_000_000,
    "Config": {
        "Env": ["PATH=/usr/bin", "NCCL_DEBUG=INFO"],
        "Cmd": None,
        "Entrypoint": ["vllm"],
        "WorkingDir": "",
        "User": "",
        "Labels": {"spark-lab.stamp": "0123456789abcdef"},
    },
    "RootFS": {"Type": "layers", "Layers": LAYERS},
}
CONTAINERD: dict[
    str, Any
] = {  # the containerd store: the Id is the digest of the manifest, empty fields are left out; loaded, so no digest
    "Id": "sha256:" + "2" * 64,
    "RepoTags": ["ghcr.io/site/glm:1"],
    "Os": "linux",
    "Architecture": "arm64",
    "Size": 6_000_000_000,
    "Config": {"Env": ["PATH=/usr/bin", "NCCL_DEBUG=INFO"], "Entrypoint": ["vllm"], "Labels": {"spark-lab.stamp": "0123456789abcdef"}},
    "RootFS": {"Type": "layers", "Layers": LAYERS},
}


def picture(layers: str = "ab", name: str = "glm:1", stamp: str | None = None, env: tuple[str, ...] = (), **more: Any) -> Image:
    """An image with one layer for each letter."""
    labels = {"spark-lab.stamp": stamp} if stamp else None
    found = read(
        name, {"Id": f"sha256:{layers}", "Config": {"Env": list(env), "Labels": labels}, "RootFS": {"Layers": list(layers)}, **more}
    )
    assert found is not None
    return found
