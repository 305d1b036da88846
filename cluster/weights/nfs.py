"""One copy on the head, mounted by the workers (NFS_SHARE=1): what must be true of the mount, and the commands that make it so. Pure.

Nothing is exported or mounted here: that needs root, and belongs into the nodes' own /etc/exports and /etc/fstab.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cluster.ranks import Rank
from cluster.weights.held import Finding, Held

if TYPE_CHECKING:
    from cluster.weights.looks import View

CLIENT_OPTIONS = "ro,nfsvers=4.2,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600,_netdev"


def findings(view: View, rank: Rank, held: Held) -> list[Finding]:
    """What is wrong with a worker's mount. Nothing without NFS_SHARE, on the head, and for a folder that is not there at all."""
    if not rank.settings.nfs_share or rank.number == 0 or not held.exists or held.snapshot.is_folder:
        return []
    repair = "\n".join(commands(view, rank))
    return [Finding(rank.role, held.mount["point"], *fault, repair) for fault in _faults(held.mount, server(rank))]


def server(rank: Rank) -> str:
    """The address the workers mount from: NFS_SERVER_IP, else the head's on the fabric."""
    return rank.settings.nfs_server_ip or rank.settings.node("head").ip or ""


def _faults(mount: dict[str, Any] | Any, address: str) -> Iterator[tuple[str, Any, Any]]:
    if "ro" not in mount["options"]:
        yield "writable", "a read-only mount", f"{mount['type']} from {mount['source']}, read-write"
    if not mount["type"].startswith("nfs"):
        return  # a bind mount or another shared file system: read-only is all that can be asked of it
    options = dict(word.partition("=")[::2] for word in mount["options"])
    if options.get("addr") != address:
        yield "server", address, options.get("addr")
    if not options.get("vers", "").startswith("4"):
        yield "version", "NFS 4", options.get("vers")
    if int(options.get("nconnect", 1)) < 2:
        yield "connections", "nconnect=8", options.get("nconnect", "1")


def commands(view: View, rank: Rank) -> list[str]:
    """The commands, as root, that export the head's cache and mount it on one worker."""
    head, snapshot = view.ranks[view.cluster.head], view.snapshots[0]
    source = view.of(head.role, snapshot).folder.partition("/hub/")[0] if head.role in view.held else head.node.hf_home
    target = view.of(rank.role, snapshot).folder.partition("/hub/")[0] if rank.role in view.held else rank.node.hf_home
    return [
        f"on the head: echo '{source} {rank.node.ip}(ro,no_subtree_check,fsid=77)' >> /etc/exports; exportfs -ra",
        f"on {rank.role}: mkdir -p {target}; mount -t nfs -o {CLIENT_OPTIONS} {server(rank)}:{source} {target}",
    ]
