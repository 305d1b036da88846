"""The rsync streams of one resync: started on the head by its agent, watched from here, ended whatever happens here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.errors import LaunchError
from cluster.plan import Step
from cluster.weights import progress, rsync
from cluster.weights.looks import Say, View, head_is_here, request

if TYPE_CHECKING:
    from cluster.weights.sync import Order

_EVERY_S = 0.5
_LOST_LOOKS = 20  # the streams outlive a connection to the head that is lost for some looks


@dataclass(frozen=True)
class Stream:
    """One rsync: its name on the head, the worker it goes to, its words and files."""

    name: str
    role: str
    argv: tuple[str, ...]
    files: tuple[str, ...]


@dataclass
class Streams:
    """All streams to all workers, at once."""

    view: View
    orders: Sequence[Order]

    def made(self) -> list[Stream]:
        """The streams: each order's files in at most SYNC_STREAMS portions. The kit's ssh configuration is that of this machine."""
        s = self.view.cluster.effective.settings
        config = str(s.ssh_config) if s.ssh_config and head_is_here(self.view.cluster) else None
        found = []
        for order in self.orders:
            source = self.view.of(self.view.cluster.head, order.snapshot).folder
            argv = rsync.argv(source, rsync.Target.of(order.rank.node), order.staging, config)
            for number, names in enumerate(rsync.spread(order.sizes(), s.sync_streams)):
                name = f"sync-{order.rank.role}-{order.snapshot.role}-{number}"
                found.append(Stream(name, order.rank.role, argv, tuple(names)))
        return found

    def run(self, say: Say, keep: Callable[[], None]) -> tuple[dict[str, int], dict[str, list[LaunchError]]]:
        """Start, watch to the end, forget. Returns the bytes sent to each worker, and the failures of each."""
        streams = self.made()
        names = [stream.name for stream in streams]
        push = [{"name": s.name, "argv": s.argv, "files": s.files} for s in streams]
        try:
            self._ask("sync_push", "start rsync", streams=push, boot=secrets.token_hex(4))
            ends = self._watch(names, say, keep)
        finally:
            self._ask("sync_stop", "end rsync", names=names)
        sent: dict[str, int] = {}
        failed: dict[str, list[LaunchError]] = {}
        for stream in streams:
            end = ends[stream.name]
            sent[stream.role] = sent.get(stream.role, 0) + (rsync.sent_bytes(end["tail"]) or rsync.done_bytes(end["tail"]))
            if end["code"] != 0:
                failed.setdefault(stream.role, []).append(_failure(stream, end))
        return sent, {role: _fewer(errors) for role, errors in failed.items()}

    def _watch(self, names: list[str], say: Say, keep: Callable[[], None]) -> Mapping[str, Any]:
        totals = {order.rank.role: 0 for order in self.orders}
        for order in self.orders:
            totals[order.rank.role] += sum(order.sizes().values()) - order.there
        misses = 0
        with progress.shown("copied", totals, say) as tell:
            while True:
                keep()
                try:
                    ends: Mapping[str, Any] = self._ask("sync_look", "look at rsync", names=names)["streams"]
                    misses = 0
                except LaunchError:
                    misses += 1
                    if misses == _LOST_LOOKS:
                        raise
                    time.sleep(_EVERY_S)
                    continue
                done = dict.fromkeys(totals, 0)
                for name, end in ends.items():
                    done[name.split("-")[1]] += rsync.done_bytes(end["tail"])
                tell(done)
                if not any(end["lives"] for end in ends.values()):
                    return ends
                time.sleep(_EVERY_S)

    def _ask(self, action: str, shown: str, **more: Any) -> dict[str, Any]:
        head = self.view.ranks[self.view.cluster.head]
        step = Step(head.role, shown, request(head, action, **more), 120)
        answer: dict[str, Any] = self.view.cluster.nodes.run([step]).all_or_raise(shown)[head.role]
        return answer


def _failure(stream: Stream, end: Mapping[str, Any]) -> LaunchError:
    what, hint = rsync.sentence(end["code"])
    ran = " ".join(stream.argv)
    return LaunchError(f"the copy from the head failed: {what}", node=stream.role, ran=ran, tail=rsync.errors(end["tail"]), hint=hint)


def _fewer(errors: list[LaunchError]) -> list[LaunchError]:
    """One failure where all streams to a worker failed alike."""
    return list({str(error): error for error in errors}.values())[:2]
