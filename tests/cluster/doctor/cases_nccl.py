"""Cases: the NCCL library, and what transfers moved."""

from __future__ import annotations

from typing import Any

from cluster.facts.transfer import Transfer, Transfers
from tests.cluster.doctor.changes import Case, both, configured, put
from tests.cluster.doctor.scenes import Change, Pair
from tests.cluster.facts import recorded

HOST_PATH = "~/nccl-2.30.7/libnccl.so.2.30.7"
RING = ["NCCL_IB_SUBNET_AWARE_ROUTING", "SWITCHLESS_RING_ONLY"]
PATCHED = {"path": HOST_PATH, "sha256": "7b" * 32, "bytes": 250_000_000, "version": "2.30.7+cuda13.0", "marks": RING}


def library(role: str = "head", **changed: Any) -> Change:
    return put(role, "node", "nccl", recorded.nccl(**changed))


def patched(role: str, **changed: Any) -> Change:
    """USE_HOST_NCCL=1, and what is at its path there."""
    return lambda pair: getattr(pair, role)["node"]["nccl"].update(host={**PATCHED, **changed})


ON_BOTH = both(patched("head"), patched("worker"), configured(USE_HOST_NCCL="1", NCCL_SWITCHLESS_RING_ONLY="1"))
SYSTEM = {**PATCHED, "path": "/usr/lib/aarch64-linux-gnu/libnccl.so.2", "marks": []}


def tcp(gbit_s: float | None, link: float | None = 200, problem: str | None = None) -> Change:
    """One direction, as measured."""
    moved = None if gbit_s is None else int(gbit_s * 1e9 / 8 * 2)

    def change(pair: Pair) -> None:
        pair.transfers = Transfers(True, (Transfer("head", "worker", "TCP", link, gbit_s, moved, moved and 2.0, problem),))

    return change


def refused(pair: Pair) -> None:
    pair.transfers = Transfers(True, (), {"head": "spark-lab-head"})


NCCL = (
    Case("nccl-library", "head", lambda p: None, ("2.30.7+cuda13.0 sha256 5a5a5a5a5a5a", "dist-packages/nvidia/nccl/lib/libnccl.so.2")),
    Case(
        "nccl-differs", "cluster", library(sha256="9c" * 32),
        ("head 2.30.7+cuda13.0 sha256 9c9c9c9c9c9c, worker 2.30.7+cuda13.0 sha256 5a5a5a5a5a5a", "invoke ship"),
    ),
    Case(
        "nccl-lacks-option", "head", both(library(marks=[]), configured(NCCL_IB_SUBNET_AWARE_ROUTING="1")),
        ("does not know NCCL_IB_SUBNET_AWARE_ROUTING",),
    ),
    Case(
        "nccl-unknown", "head", lambda p: p.head["node"]["nccl"].update(libraries=[]), ("no libnccl.so.2", "sha256sum"),
    ),
    Case(
        "nccl-twice", "head", lambda p: p.head["node"]["nccl"]["libraries"].append(SYSTEM),
        ("/usr/lib/aarch64-linux-gnu/libnccl.so.2: 2.30.7+cuda13.0 sha256 7b7b7b7b7b7b", "leave one"),
    ),
    Case(
        "nccl-patched-missing", "worker",
        both(ON_BOTH, lambda p: p.worker["node"]["nccl"].update(host={"path": HOST_PATH, "problem": "No such file or directory"})),
        (f"{HOST_PATH}: No such file or directory", "NCCL_HOST_DIR"),
    ),
    Case(
        "nccl-patched-differs", "cluster", both(ON_BOTH, patched("worker", sha256="8d" * 32)),
        ("head 2.30.7+cuda13.0 sha256 7b7b7b7b7b7b, worker 2.30.7+cuda13.0 sha256 8d8d8d8d8d8d", "copy one"),
    ),
    Case(
        "nccl-patched-stock", "worker", both(ON_BOTH, patched("worker", marks=RING[:1])), ("the word SWITCHLESS_RING_ONLY", "patch"),
    ),
)  # fmt: skip

TRANSFER = (
    Case(
        "link-moves-little", "worker", tcp(13.0),
        ("head to worker by TCP: 13 Gb/s (3.03 GiB in 2.00 s); expected 30 or more of the link's 200", "power both Sparks off"),
    ),
    Case("transfer-rate", "worker", tcp(95.0), ("head to worker by TCP: 95 Gb/s", "of the link's 200")),
    Case("transfer-failed", "worker", tcp(None, problem="no connection to 10.0.0.2 port 20001: timed out"), ("no connection", "ufw")),
    Case("transfer-not-run", "cluster", refused, ("head runs spark-lab-head", "invoke down first, or --transfer --force")),
)  # fmt: skip
