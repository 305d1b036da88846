"""What an image is: the same in both stores of docker, with and without digests; and what names mean."""

import hashlib

import pytest

from cluster.images.identity import differences, local_only, read, registry, summary, tag_of, too_deep, travelling, untagged
from tests.cluster.images.samples import CLASSIC, CONTAINERD, LAYERS, picture


def test_both_stores_give_one_identity() -> None:
    one, other = read("glm:1", CLASSIC), read("glm:1", CONTAINERD)
    assert one is not None
    assert other is not None
    assert one.id != other.id
    expected = hashlib.sha256(f"{LAYERS[0]}\n{LAYERS[1]}".encode()).hexdigest()
    assert one.identity == other.identity == expected
    assert differences(one, other) == []
    assert (one.digest, other.digest) == ("ghcr.io/site/glm@sha256:" + "d" * 64, None)
    assert (one.stamp, other.stamp) == ("0123456789abcdef", "0123456789abcdef")
    assert (one.platform, other.platform) == ("linux/arm64/v8", "linux/arm64")
    assert summary(one) == {"identity": expected, "id": "sha256:" + "1" * 64, "digest": one.digest, "stamp": "0123456789abcdef"}


def test_the_order_and_every_layer_count() -> None:
    assert len({picture(layers).identity for layers in ("ab", "ba", "a", "abc", "")}) == 5


def test_no_image_and_an_empty_one() -> None:
    assert read("x", None) is None
    bare = read("x", {"Id": "sha256:0", "RepoDigests": None, "Config": None, "RootFS": {}})
    assert bare is not None
    assert (bare.layers, bare.digests, bare.stamp, bare.platform, bare.size_bytes, bare.baked) == ((), (), None, "", 0, [])


def test_differences_beside_the_layers() -> None:
    changed = {**CLASSIC, "Config": {**CLASSIC["Config"], "Env": ["PATH=/usr/bin", "NCCL_DEBUG=WARN"], "User": "ada"}}
    one, other = read("glm:1", CLASSIC), read("glm:1", changed)
    assert one is not None
    assert other is not None
    assert one.identity == other.identity
    assert differences(one, other) == ["Env: ['NCCL_DEBUG=INFO'] -> ['NCCL_DEBUG=WARN']", "User:  -> ada"]


def test_the_order_of_variables_does_not_matter() -> None:
    assert differences(picture(env=("A=1", "B=2")), picture(env=("B=2", "A=1"))) == []


def test_variables_of_the_fabric_in_an_image() -> None:
    assert picture(env=("PATH=/x", "NCCL_IB_HCA=mlx5", "GLOO_SOCKET_IFNAME=eth0", "MY_NCCL_X=1")).baked == [
        "NCCL_IB_HCA=mlx5",
        "GLOO_SOCKET_IFNAME=eth0",
    ]


@pytest.mark.parametrize(("count", "why"), [(127, None), (128, "glm:1 has 128 layers; docker loads at most 127 (max depth exceeded)")])
def test_depth(count: int, why: str | None) -> None:
    assert too_deep(picture("x" * count)) == why


@pytest.mark.parametrize(
    ("name", "local", "host", "repository"),
    [
        ("glm:1", True, "docker.io", "glm"),
        ("spark-lab/glm-exl3:0.32", True, "docker.io", "spark-lab/glm-exl3"),
        ("vllm/vllm-openai:x", False, "docker.io", "vllm/vllm-openai"),
        ("ghcr.io/site/glm:exl3", False, "ghcr.io", "ghcr.io/site/glm"),
        ("10.0.0.1:5000/glm", False, "10.0.0.1:5000", "10.0.0.1:5000/glm"),
        ("localhost/glm:1", False, "localhost", "localhost/glm"),
    ],
)
def test_names(name: str, local: bool, host: str, repository: str) -> None:
    assert (local_only(name), registry(name), untagged(name), tag_of(name)) == (local, host, repository, name)


@pytest.mark.parametrize("name", ["10.0.0.1:5000/glm", "10.0.0.1:5000/glm:tag"])
def test_a_digest_becomes_a_tag(name: str) -> None:
    assert tag_of(f"{name}@sha256:0123456789abcdef{'0' * 48}") == "10.0.0.1:5000/glm:pinned-0123456789abcdef"


def test_the_name_on_the_way_says_what_must_arrive() -> None:
    image = picture("ab")
    assert travelling(image) == f"spark-lab/ship:{image.identity[:16]}"
