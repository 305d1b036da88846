"""What a person sees, and the findings that explain it: the troubleshooting list of docs/serving.md."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.doctor.examine import KINDS


@dataclass(frozen=True)
class Symptom:
    """seen: in the words of somebody who does not know the cause. kinds: ids of findings, the likeliest first."""

    seen: str
    kinds: tuple[str, ...]


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "Nothing can be started, or a node does not answer",
        (
            "settings-refused", "node-unreachable", "host-key-unknown", "host-key-changed", "ssh-login", "docker-missing", "docker-silent",
            "docker-permission", "docker-no-gpu", "gpu-none", "image-missing", "image-architecture", "image-layers", "disk-image",
            "weights-missing", "container-name", "container-other-kit", "port-held", "disk-cache", "folder-unwritable", "folder-owner",
            "tool-not-on-path", "facts-late", "launch-lock",
        ),
    ),
    Symptom(
        "The ranks start and never meet, or one ends about a minute into the start",
        (
            "gid-wrong", "gid-missing", "gid-split", "gid-link-local-twice", "address-absent", "address-on-lo", "device-placeholder",
            "device-absent", "device-other", "hca-placeholder", "hca-absent", "hca-down", "hca-no-address", "hca-unset", "hca-other",
            "link-down", "route-none", "route-other", "peer-silent", "transfer-failed", "mtu-mismatch", "path-mtu",
            "nccl-patched-missing", "nccl-patched-stock", "nccl-patched-differs", "nccl-lacks-option", "nccl-differs", "nccl-unknown",
            "known-bad-version", "image-differs",
        ),
    ),
    Symptom(
        "The start ends while it loads, or for lack of memory",
        (
            "memory-short", "gpu-busy", "gpu-shared", "foreign-engine", "container-foreign", "desktop-running", "weights-incomplete",
            "hub-incomplete", "hub-lock-stale", "disk-weights", "rsync-missing", "cache-shared", "swap-used", "page-size-mismatch",
        ),
    ),
    Symptom(
        "Answers stop in the middle, the API still says it is healthy",
        ("gpu-spin", "nccl-differs", "mtu-mismatch", "path-mtu", "fabric-wireless", "fabric-default-route", "same-subnet", "swap-used"),
    ),
    Symptom(
        "The server is gone, and nobody stopped it",
        (
            "node-restarted", "oom-killed", "earlyoom", "linger", "docker-rootless", "container-restarts", "memory-short", "clock-skew",
            "disk-state", "zombies",
        ),
    ),
    Symptom(
        "It is slower than published, or than yesterday",
        (
            "gpu-slow", "gpu-cap", "gpu-throttled", "gpu-hot", "gpu-other", "link-slow", "hca-slow", "link-moves-little", "mtu-small",
            "container-foreign", "foreign-engine", "gpu-shared", "driver-mismatch", "kernel-mismatch", "firmware-mismatch",
        ),
    ),
    Symptom("A setting has no effect", ("nccl-exported", "image-baked-variables", "device-other", "image-differs")),
)  # fmt: skip


def documented() -> str:
    """A heading for each symptom and below it a line for each finding, with why it matters."""
    return "\n".join(_listed(each) for each in SYMPTOMS)


def _listed(symptom: Symptom) -> str:
    lines = [f"- `{name}`: {KINDS[name].why}" for name in symptom.kinds]
    return "\n".join([f"### {symptom.seen}", "", *lines, ""])
