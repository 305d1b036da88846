"""The NCCL library: what must not be found, the four-node ring, and what is remembered of an image."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.doctor.examine import examine
from cluster.doctor.finding import Finding
from cluster.facts import nccl
from cluster.facts.node import Gathered
from cluster.facts.request import facts_step
from cluster.ranks import ranks
from tests.cluster.doctor.cases_nccl import ON_BOTH, PATCHED, RING, library, tcp
from tests.cluster.doctor.changes import both, configured, put
from tests.cluster.doctor.scenes import Change, changed, found
from tests.cluster.facts import recorded
from tests.cluster.plans import effective


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda p: None, {"nccl-library"}),
        (both(library(marks=[])), {"nccl-library"}),  # a pair by one cable needs no subnet routing
        (both(library("head", sha256="9c" * 32), library("worker", sha256="9c" * 32)), {"nccl-library"}),
        (both(library(sha256="9c" * 32), ON_BOTH), {"nccl-library"}),  # what the patched library lies over does not matter
        (both(library(marks=[]), library("worker", marks=[]), ON_BOTH, configured(NCCL_IB_SUBNET_AWARE_ROUTING="1")), {"nccl-library"}),
        (put("head", "node", "nccl", None), {"nccl-library"}),  # an answer without it: only the other node's is told
        (lambda p: p.head["node"]["nccl"].update(libraries=None), {"nccl-library"}),
    ],
)
def test_what_is_in_order(change: Change, kinds: set[str]) -> None:
    assert {name for name in found(change) if name.startswith("nccl")} == kinds


def test_a_library_whose_version_is_the_same_is_not_the_same_library() -> None:
    pair = changed(library(sha256="9c" * 32, version="2.28.9+cuda13.0"), library("worker", version="2.28.9+cuda13.0"))
    said = next(each.what for each in pair.findings() if each.id == "nccl-differs")
    assert said.count("2.28.9+cuda13.0") == 2


def test_docker_that_cannot_make_a_container_says_so() -> None:
    told = {"image": "sha256:1111", "libraries": None, "problem": "docker create x failed", "host": None}
    pair = changed(put("head", "node", "nccl", told))
    assert [(each.where, each.what) for each in pair.findings() if each.id == "nccl-unknown"] == [("head", "docker create x failed")]


# The ring


def ring(*changes: tuple[str, dict[str, Any]], **settings: str) -> list[Finding]:
    """Findings about NCCL on four nodes, each with the ring's library, and the changes."""
    answers = {role: copy.deepcopy(recorded.answer("head")) for role in ("head", "worker", "worker2", "worker3")}
    for answer in answers.values():
        answer["node"]["nccl"]["host"] = dict(PATCHED)
    for role, values in changes:
        answers[role]["node"]["nccl"]["host"] |= values
    nodes = {role: recorded.facts(role, answer) for role, answer in answers.items()}
    return [each for each in examine(effective("ring4", **settings), Gathered(nodes)) if each.id.startswith("nccl")]


def test_a_ring_with_one_library() -> None:
    assert {(each.id, each.where) for each in ring()} == {("nccl-library", role) for role in ("head", "worker", "worker2", "worker3")}
    assert "~/nccl-2.30.7/libnccl.so.2.30.7: 2.30.7+cuda13.0 sha256 7b7b7b7b7b7b" in ring()[0].what


def test_a_ring_in_which_one_node_is_different() -> None:
    errors = {(each.id, each.where) for each in ring(("worker2", {"sha256": "00" * 32, "marks": RING[:1]})) if each.level == "error"}
    assert errors == {("nccl-patched-differs", "cluster"), ("nccl-patched-stock", "worker2")}
    errors = {(each.id, each.where) for each in ring(("worker3", {"marks": ["SWITCHLESS_RING_ONLY"]})) if each.level == "error"}
    assert errors == {("nccl-lacks-option", "worker3")}


def test_what_each_rank_is_asked() -> None:
    asked = facts_step(ranks(effective("ring4"))[3], {"sha256:b": [], "sha256:a": []}).request["nccl"]
    assert asked == {
        "image": "spark-lab/glm-exl3:0.32",
        "paths": ["/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2", "/usr/lib/MACHINE-linux-gnu/libnccl.so.2"],
        "known": ["sha256:a", "sha256:b"],
        "host": "~/nccl-2.30.7/libnccl.so.2.30.7",
        "marks": ["SWITCHLESS_RING_ONLY", "NCCL_IB_SUBNET_AWARE_ROUTING"],
        "limit_s": 25,
    }
    venv = facts_step(ranks(effective("spark2", RUNTIME="process", HEAD_VENV="/v", WORKER_VENV="/w"))[1]).request["nccl"]
    assert (venv["image"], venv["paths"][0], venv["host"]) == (None, "/w/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2", None)
    assert facts_step(ranks(effective("local"))[0]).request["nccl"] is None


# What is remembered


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "spark-lab/spark2/nccl.json"


def test_an_image_is_read_once(state: Path) -> None:
    assert nccl.remembered("spark2") == {}
    first = {"head": recorded.answer("head"), "worker": recorded.answer("worker")}
    nccl.completed("spark2", first, {})
    known = nccl.remembered("spark2")
    assert list(known) == ["sha256:1111"]
    second = {"head": recorded.answer("head")}
    second["head"]["node"]["nccl"]["libraries"] = None  # as the agent answers for an image that is known
    nccl.completed("spark2", second, known)
    assert recorded.facts("head", second["head"]).nccl == recorded.facts("head", first["head"]).nccl
    assert recorded.facts("head", second["head"]).nccl.loaded is not None


def test_what_was_looked_for_otherwise_or_cannot_be_read_is_not_taken(state: Path) -> None:
    nccl.completed("spark2", {"head": recorded.answer("head")}, {})
    told = json.loads(state.read_text())
    state.write_text(json.dumps({**told, "asked": ["/elsewhere"]}))
    assert nccl.remembered("spark2") == {}
    state.write_text("{")
    assert nccl.remembered("spark2") == {}


def test_nothing_found_is_not_remembered(state: Path) -> None:
    answer = recorded.answer("head")
    answer["node"]["nccl"]["libraries"] = []
    nccl.completed("spark2", {"head": answer}, {})
    assert not state.exists()


def test_a_state_folder_that_cannot_be_written_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    nccl.completed("spark2", {"head": recorded.answer("head")}, {})


# Transfers


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (tcp(29.9), {"link-moves-little"}),
        (tcp(30.0), {"transfer-rate"}),  # 15 % of 200
        (tcp(1.4, link=10), {"link-moves-little"}),
        (tcp(0.2, link=None), {"transfer-rate"}),  # a link that does not say its speed is not judged
        (lambda p: None, set()),
    ],
)
def test_when_a_link_moves_little(change: Change, kinds: set[str]) -> None:
    assert found(change) & {"link-moves-little", "transfer-rate", "transfer-failed", "transfer-not-run"} == kinds
