"""The NCCL library of every rank: the same build everywhere, and one that this kit's cables need. By content, not by version number."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.nccl import RING_MARK, SUBNET_MARK
from cluster.facts.node import Facts

IN_REFERENCE_IMAGE = "2.30.7"  # in the public recipe's image, with which the published figures were measured

LIBRARY = Kind("nccl-library", "info", "what the collectives are built on, to compare with a kit that works", "A13 A17 A22")
DIFFERS = Kind(
    "nccl-differs", "error", "ranks of two NCCL builds stop in a collective, at once or after half an hour; an equal version is no proof",
    "A17 A22",
)  # fmt: skip
LACKS = Kind(
    "nccl-lacks-option", "error", "the library never reads a variable that these cables need: the first all-reduce dies in ibv_modify_qp",
    "A17 A19",
)  # fmt: skip
UNKNOWN = Kind("nccl-unknown", "warning", "whether the ranks load the same NCCL build is not known", "A17 A22")
TWICE = Kind("nccl-twice", "info", "torch loads the first; a process that loads the other as well has two builds in it", "A22")
PATCHED_MISSING = Kind("nccl-patched-missing", "error", "docker mounts an empty folder where the library should be: no rank starts", "A18")
PATCHED_DIFFERS = Kind("nccl-patched-differs", "error", "ranks of two NCCL builds stop in a collective", "A18 A22")
PATCHED_STOCK = Kind(
    "nccl-patched-stock",
    "error",
    "stock NCCL builds a tree between nodes without a cable: 'ncclTransportTreeConnect unhandled error'",
    "A18",
)


def library(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """What the rank loads, and whether it is alone in the image."""
    found = facts.nccl.libraries or ()
    if facts.nccl.loaded:
        what = f"{facts.nccl.loaded.path}: {facts.nccl.loaded}; the public recipe's image has {IN_REFERENCE_IMAGE}"
        yield LIBRARY.at(facts.role, what, "nothing; compare it with a kit that works when collectives hang or are slow")
    elif scene.sparks and scene.several and (facts.nccl.problem or facts.nccl.libraries == ()):
        why = facts.nccl.problem or "no libnccl.so.2 is where torch and the distribution put it"
        yield UNKNOWN.at(facts.role, why, "find / -name 'libnccl.so*' in the image or venv of every node; compare their sha256sum")
    if len({each.sha256 for each in found}) > 1 and not facts.nccl.host_path:
        yield TWICE.at(
            facts.role, "; ".join(f"{each.path}: {each}" for each in found), "when a collective hangs after minutes: leave one of them only"
        )


def same(scene: Scene) -> Iterator[Finding]:
    loaded = {role: facts.nccl.loaded for role, facts in scene.nodes.items() if facts.nccl.loaded and not facts.nccl.host_path}
    if differing({role: each.sha256 for role, each in loaded.items() if each}):
        shown = ", ".join(f"{role} {each}" for role, each in loaded.items())
        yield DIFFERS.at(
            CLUSTER, f"the ranks load different NCCL libraries: {shown}", "invoke ship; with the process runtime the same venv"
        )


def options(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """A library in which the variable's name does not occur cannot read it."""
    loaded = facts.nccl.loaded
    if scene.effective.settings.nccl_ib_subnet_aware_routing and loaded and SUBNET_MARK not in loaded.marks:
        what = f"{loaded.path} ({loaded}) does not know {SUBNET_MARK}, which this kit sets"
        yield LACKS.at(facts.role, what, "an image with NCCL 2.30 or later; 2.32.3 knows it")


def patched(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """USE_HOST_NCCL=1: the file is there, and it is the ring's."""
    host, path = facts.nccl.host, facts.nccl.host_path
    if facts.nccl.host_problem:
        what = f"the patched NCCL library {path}: {facts.nccl.host_problem}"
        yield PATCHED_MISSING.at(facts.role, what, "copy it there from another node (rsync -L), or set NCCL_HOST_DIR and NCCL_SO_NAME")
    elif host and scene.effective.settings.nccl_switchless_ring_only and RING_MARK not in host.marks:
        what = f"{path} ({host}) does not hold the word {RING_MARK}: it is not the ring's build"
        yield PATCHED_STOCK.at(facts.role, what, "build NCCL with the ring's patch, the same file for every node")


def patched_same(scene: Scene) -> Iterator[Finding]:
    hosts = {role: facts.nccl.host for role, facts in scene.nodes.items() if facts.nccl.host}
    if differing({role: each.sha256 for role, each in hosts.items()}):
        shown = ", ".join(f"{role} {each}" for role, each in hosts.items())
        yield PATCHED_DIFFERS.at(CLUSTER, f"the patched NCCL library is not the same file everywhere: {shown}", "copy one of them to all")


CHECKS: tuple[Check, ...] = (each_node(library), same, each_node(options), each_node(patched), patched_same)
