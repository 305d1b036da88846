"""Log lines with a known meaning: pattern -> what it says, what to try. Pure data and the search in it.

The order of kinds is the order of causes: a rank that lacks memory ends, and then the healthy ranks complain about the network
(field reports F10), so a memory line on any rank outweighs an earlier or louder network line on another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.boot.look import Line

KINDS = ("memory", "settings", "port", "fabric", "engine", "peers")


@dataclass(frozen=True)
class Signature:
    """A line that matches `pattern` means `says`; `hint`: what to try."""

    kind: str
    pattern: re.Pattern[str]
    says: str
    hint: str


@dataclass(frozen=True)
class Cause:
    """The line that explains a failed start best, on which role it stood, and its signature where it has a known one."""

    role: str
    line: Line
    signature: Signature | None

    def told(self) -> str:
        """One sentence with the line that it comes from."""
        says = f"{self.signature.says}: " if self.signature else ""
        return f"{says}{self.role}: {self.line.text[:300]}"


_MEMORY = "lower GPU_MEM_UTIL or MAX_MODEL_LEN; look for other users of the memory on that node: free -h; nvidia-smi"
_CACHES = f"{_MEMORY}; sync; echo 3 > /proc/sys/vm/drop_caches"
_KV = "lower MAX_MODEL_LEN, or reserve with KV_CACHE_MEMORY_BYTES"
_LINGER = "systemd removes them when the login's last session ends: loginctl enable-linger; or RemoveIPC=no in logind.conf"
_FABRIC = "check the GID index per rank (show_gids), the cables and the MTU on both ends; HEAD_GID, WORKER_GID, NCCL_IB_GID_INDEX"
_PEERS = "look at the other ranks first: one that ended or hangs is why this one waits; check *_CX7_IF, *_IP and MASTER_PORT"

_ROWS = (
    ("memory", r"NV_ERR_NO_MEMORY", "the GPU driver could not get memory for its kernel part", "restart that node, then start again"),
    ("memory", r"Free memory on device .* less than", "less memory was free at the start than the engine was told to use", _CACHES),
    ("memory", r"KV cache is needed, which is larger than the available", "the KV cache for one longest request does not fit", _KV),
    ("memory", r"No available memory for the cache blocks", "nothing is left for the KV cache", _KV),
    ("memory", r"buffer_size exceeds .*memory budget", "the fast loader's buffer does not fit", "drop the page cache; or LOAD_FORMAT="),
    ("memory", r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY", "the GPU ran out of memory", _MEMORY),
    ("memory", r"MemoryError|Cannot allocate memory|std::bad_alloc", "the node ran out of memory", _MEMORY),
    ("memory", r"[Oo]ut of memory: Killed process|oom-kill", "the kernel killed a process for lack of memory", _MEMORY),
    ("settings", r"error: argument --|unrecognized arguments", "vLLM refused its command line", "check EXTRA_ARGS; invoke plan"),
    ("settings", r"No module named|ImportError: ", "the image lacks a Python module or library", "check IMAGE on every node"),
    ("port", r"[Aa]ddress already in use|EADDRINUSE", "a port is taken", "stop its holder, or set PORT or MASTER_PORT"),
    ("fabric", r"ibv_modify_qp .*\b61\b", "the RoCE GID at the chosen index is empty on that rank", _FABRIC),
    ("fabric", r"ibv_modify_qp .*\b110\b", "the RoCE connection timed out: no path between two ports", _FABRIC),
    ("fabric", r"Unable to find address for: ", "the device named for Gloo or NCCL has no address there", "check *_CX7_IF; ip -br addr"),
    ("fabric", r"duplicate NCCL", "two NCCL libraries are loaded", "USE_HOST_NCCL=0"),
    ("engine", r"SemLock|semaphore or lock released too many times|sem_open", "the rank's shared semaphores vanished", _LINGER),
    ("engine", r"RPC call to \w+ timed out", "the engine waited too long for a rank's step", _PEERS),
    ("peers", r"\b\d+/\d+ clients joined", "a rank waits for the others to join", _PEERS),
    ("peers", r"No available shared memory broadcast block found", "the engine waits for a rank that does not answer", _PEERS),
    ("peers", r"DistStoreError|wait timeout after \d+ms|Timed out .*waiting for clients", "not all ranks joined in time", _PEERS),
    ("peers", r"Connection (?:reset|closed|refused)(?: by peer)?|Broken pipe", "the connection to another rank broke", _PEERS),
    ("peers", r"NCCL WARN|ncclSystemError|ncclRemoteError|unhandled system error", "NCCL lost its peers", _PEERS),
)
SIGNATURES = tuple(Signature(kind, re.compile(pattern), says, hint) for kind, pattern, says, hint in _ROWS)

# Lines that a waiting rank goes on printing: they are no progress.
NOISE = re.compile(
    r"No available shared memory broadcast block|clients joined|core engine proc\(s\) to (?:connect|start)|still waiting|Waiting for"
)
_ERROR = re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|^\w*(?:Error|Exception)\b|\berror:|Segmentation fault|Aborted|core dumped")


def signature(text: str) -> Signature | None:
    """The first signature that the line shows."""
    return next((known for known in SIGNATURES if known.pattern.search(text)), None)


def cause(lines: Mapping[str, Iterable[Line]]) -> Cause | None:
    """The best explanation in the logs of all ranks (by role): the weightiest kind of known line, the earliest one of it in time.

    Without a known line, the earliest line that looks like an error. Compares the clocks of several nodes, as they are.
    """
    found = [Cause(role, line, signature(line.text)) for role, each in lines.items() for line in each]
    known = [one for one in found if one.signature]
    if known:
        return min(known, key=lambda one: (KINDS.index(one.signature.kind) if one.signature else 0, one.line.at_unix_s))
    return min((one for one in found if _ERROR.search(one.line.text)), key=lambda one: one.line.at_unix_s, default=None)
