"""What `up` puts right by itself, what it refuses, and what it only says."""

from typing import Any

import pytest

from cluster.images import judge
from cluster.images.identity import Image
from cluster.settings import Effective
from tests.cluster.images.samples import CLASSIC, picture
from tests.cluster.plans import effective

REMOTE = "ghcr.io/site/glm:1"
A, B = picture("ab"), picture("ac")


def kit(name: str = "glm:1", **changed: str) -> Effective:
    return effective("spark3", IMAGE=name, **changed)


def three(head: Image | None, worker: Image | None, worker2: Image | None) -> dict[str, Image | None]:
    return {"head": head, "worker": worker, "worker2": worker2}


@pytest.mark.parametrize(
    ("found", "pull", "ship"),
    [
        (three(A, A, A), False, []),
        (three(A, B, A), False, ["worker"]),
        (three(A, None, B), False, ["worker", "worker2"]),
        (three(None, A, A), True, []),
        (three(None, None, None), True, []),
    ],
)
def test_what_is_to_be_done(found: dict[str, Image | None], pull: bool, ship: list[str]) -> None:
    assert (judge.to_pull(kit(), found), judge.to_ship(kit(), found)) == (pull, ship)


def firsts(effective: Effective, found: dict[str, Image | None]) -> list[str]:
    return [str(error).splitlines()[0] for error in judge.problems(effective, found)]


def test_missing_and_differing_images_are_put_right() -> None:
    assert firsts(kit(), three(A, B, None)) == []
    assert firsts(kit(REMOTE), three(None, None, A)) == []


def test_a_local_name_that_the_head_lacks() -> None:
    assert firsts(kit(), three(None, A, A)) == ["head: there is no image glm:1"]
    assert firsts(kit("spark-lab/glm:1"), three(None, None, None)) == ["head: there is no image spark-lab/glm:1"]
    assert "try: invoke build makes it on the head" in str(judge.problems(kit(), three(None, A, A))[0])


def test_skip_pull_refuses_every_node_that_is_not_as_the_head() -> None:
    skipping = kit(REMOTE, SKIP_PULL="1")
    assert firsts(skipping, three(A, A, A)) == []
    assert firsts(skipping, three(None, A, None)) == [f"head: there is no image {REMOTE}", f"worker2: there is no image {REMOTE}"]
    assert firsts(skipping, three(A, B, None)) == [
        f"worker: the image glm:1 is another one than the head's: identity {B.short}, on the head {A.short}",
        f"worker2: there is no image {REMOTE}",
    ]


def test_too_many_layers_are_refused_only_if_they_must_travel() -> None:
    deep = picture("x" * 128)
    assert firsts(kit(), three(deep, deep, deep)) == []
    assert firsts(kit(), three(deep, A, deep)) == ["head: glm:1 has 128 layers; docker loads at most 127 (max depth exceeded)"]


def test_nothing_to_judge_without_containers_or_an_answer() -> None:
    assert judge.images(effective("local"), {"local": {"image": None, "docker_error": None}}) == {}
    seen: dict[str, Any] = {"head": {"image": None, "docker_error": "silent"}, "worker": {"image": CLASSIC, "docker_error": None}}
    found = judge.images(kit(), seen)
    assert list(found) == ["worker"]
    assert (judge.to_pull(kit(), found), judge.to_ship(kit(), found), judge.problems(kit(), found)) == (False, [], [])


def test_findings() -> None:
    source = picture(
        "ab", REMOTE, stamp="0" * 16, env=("NCCL_DEBUG=INFO",), RepoDigests=["ghcr.io/other/x@sha256:1", "ghcr.io/site/glm@sha256:2"]
    )
    plain = picture("ab", REMOTE)
    assert judge.findings(REMOTE, source, {"head": source, "worker": plain, "worker2": B}, "1" * 16) == [
        f"IMAGE={REMOTE} names a tag, which its owner can move to another build; to keep this one: IMAGE=ghcr.io/site/glm@sha256:2",
        f"{REMOTE} was built from other sources ({'0' * 16}) than this checkout's ({'1' * 16}): invoke build",
        f"{REMOTE} has variables of the fabric inside: NCCL_DEBUG=INFO; they hold unless a setting replaces them",
        f"worker: {REMOTE} has the head's layers, but not its configuration (Env: ['NCCL_DEBUG=INFO'] -> []): invoke ship --force",
    ]
    assert judge.findings("glm:1", A, {"head": A, "worker": A}, "1" * 16) == []
    assert judge.findings("x/y@sha256:1", A, {}, None) == []
