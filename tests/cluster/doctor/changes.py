"""What a case is, and the changes that cases are made of."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.cluster.doctor.scenes import HEAD_IF, Change, Pair
from tests.cluster.facts import recorded
from tests.cluster.facts.recorded import GIB, interface


@dataclass(frozen=True)
class Case:
    """The kind's id, where it is found, the change, and words of what was found and of what to try."""

    id: str
    where: str
    change: Change
    words: tuple[str, ...]


def put(answer: str, part: str, key: str, value: Any) -> Change:
    """Set one entry of an answer: head or worker, files, runs or node."""
    return lambda pair: getattr(pair, answer)[part].__setitem__(key, value)


def configured(**settings: str) -> Change:
    return lambda pair: pair.settings.update(settings)


def both(*changes: Change) -> Change:
    return lambda pair: [change(pair) for change in changes]


def fails(message: str) -> Change:
    return lambda pair: pair.failures.__setitem__("worker", message)


def logged_in(**changed: Any) -> Change:
    return lambda pair: pair.head["node"]["login"].update(changed)


def ported(**changed: Any) -> Change:
    """The head's RoCE device with other entries."""
    return lambda pair: pair.head["files"].update(recorded.hca("rocep1s0f1", HEAD_IF, "10.0.0.1", **changed))


def table(address: str | None) -> Change:
    """The head's GID table maps another address, or none."""

    def change(pair: Pair) -> None:
        kept = {path: text for path, text in pair.head["files"].items() if "/gid" not in path}
        pair.head["files"] = kept | recorded.gid_table("rocep1s0f1", HEAD_IF, address)

    return change


def twin_rail(pairs: int = 1, address: str | None = "10.0.1.1") -> Change:
    """A second device on the head, with an address of its own."""

    def change(pair: Pair) -> None:
        pair.head["files"].update(recorded.hca("roceP2p1s0f1", "enP2p1s0f1np1", address, pairs=pairs))
        pair.links(interface("enP2p1s0f1np1", address))

    return change


RAILS = configured(HEAD_CX7_IB="rocep1s0f1,roceP2p1s0f1")
OURS = json.dumps({"kit": "spark2", "rank": 0, "boot": "b0", "started_unix_s": time.time()})
OTHER = json.dumps({"kit": "spark3", "rank": 0, "boot": "b0", "started_unix_s": time.time()})
OLD = json.dumps({"kit": "spark2", "rank": 0, "boot": "b0", "started_unix_s": time.time() - 200_000})
HALF = {"path": "/h/hub/models--m/blobs/ab.incomplete", "age_s": 7200.0, "bytes": 2 * GIB, "held": False}
LOCK = {"path": "/h/hub/.locks/models--m/ab.lock", "age_s": 7200.0, "bytes": 0, "held": False}
SWAP = recorded.MEMINFO.replace("SwapFree:       16777212", "SwapFree:       12582908")
