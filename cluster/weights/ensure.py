"""What `up` does about the weights: nothing when they are proven, else download on the head and copy to the workers."""

from __future__ import annotations

from collections.abc import Callable

from cluster.plan import plan_up
from cluster.session import Cluster
from cluster.weights import download, looks, sync
from cluster.weights.looks import Say, View
from cluster.weights.snapshots import snapshots

Keep = Callable[[], None]


def ensure(cluster: Cluster, say: Say, keep: Keep) -> None:
    """Bring the served snapshots to every node, as far as SKIP_DOWNLOAD and SKIP_SYNC allow. Raises LaunchError."""
    stages = [stage for stage in plan_up(cluster.effective).stages if stage.name == "weights"]
    if not stages:
        return
    view = View(cluster, snapshots(cluster.effective))
    view.accept(cluster.nodes.run(stages[0].steps))
    view.raise_failures()
    view.load_manifests(say)
    settings = cluster.effective.settings
    if not _head_complete(view, say, keep, may_download=not settings.skip_download):
        return
    if not settings.skip_sync and len(cluster.ranks) > 1:
        sync.resync(view, say, keep)


def _head_complete(view: View, say: Say, keep: Keep, *, may_download: bool) -> bool:
    """Whether the head holds everything in the end. A folder that is not there at all is left to the check, which names all that lacks."""
    for snapshot in view.snapshots:
        head = view.cluster.head
        wrong = view.findings(head, snapshot)
        if not wrong:
            continue
        if wrong[0].kind == "absent" and (snapshot.is_folder or not may_download):
            return False
        if not may_download:
            raise looks.refuse(head, wrong, f"{snapshot.label} is not complete (SKIP_DOWNLOAD=1)")
        if not snapshot.is_folder and not looks.head_is_here(view.cluster):
            raise looks.refuse(head, wrong, f"{snapshot.label} is not complete, and {download.REMOTE_HEAD}")
        download.bring(view, snapshot, say, keep)
    return True
