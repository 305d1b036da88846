"""The machine and our login on it: kernel, boot, session rules, PATH, processes, clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.facts.raw import Raw, quantity


@dataclass(frozen=True)
class Process:
    """kind: gpu (computes on it), engine (an inference server), desktop."""

    pid: int
    kind: str
    name: str
    user: str | None
    sid: int | None
    container: str | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, user {self.user})"


@dataclass(frozen=True)
class Login:
    """tools: name -> path on this PATH, or None. elsewhere: name -> where it was found instead. steering: NCCL and Gloo variables."""

    uid: int
    user: str | None
    home: str
    groups: tuple[str, ...]
    path: str
    tools: Mapping[str, str | None]
    elsewhere: Mapping[str, tuple[str, ...]]
    steering: Mapping[str, str]


@dataclass(frozen=True)
class Clock:
    """How far the node's clock is ahead of ours, seconds: at least `low`, at most `high`, by the times around the request."""

    low_s: float
    high_s: float


@dataclass(frozen=True)
class System:
    """linger, remove_ipc: logind's; None when it does not say. uptime in seconds."""

    kernel: str | None
    os: str | None
    page_bytes: int | None
    boot_id: str | None
    uptime_s: float | None
    linger: bool | None
    remove_ipc: bool | None
    target: str | None
    earlyoom: bool | None
    zombies: int
    processes: tuple[Process, ...]
    login: Login
    clock: Clock | None
    late: tuple[str, ...]

    def of_kind(self, kind: str) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.kind == kind)


def parse(raw: Raw, clock: Clock | None) -> System:
    node = raw.node
    found = node.get("processes") or {"list": [], "zombies": 0}
    uptime = quantity(raw.text("/proc/uptime"))
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', raw.text("/etc/os-release") or "", re.MULTILINE)
    earlyoom = raw.runs.get("earlyoom")
    return System(
        raw.text("/proc/sys/kernel/osrelease"), name[1] if name else None, node.get("page_bytes"),
        raw.text("/proc/sys/kernel/random/boot_id"), uptime, _yes(raw.out("linger"), r"Linger=(\w+)"),
        _remove_ipc(raw), (raw.out("target") or "").strip() or None,
        None if earlyoom is None else str(earlyoom["out"]).strip() == "active", found["zombies"],
        tuple(_process(each) for each in found["list"]), _login(node["login"]), clock, raw.late,
    )  # fmt: skip


def _yes(text: str | None, pattern: str) -> bool | None:
    match = re.search(pattern, text or "", re.IGNORECASE)
    return match[1].lower() in ("yes", "true", "1", "on") if match else None


def _remove_ipc(raw: Raw) -> bool | None:
    """What logind itself answers ("b true"), else its configuration, where the last file wins; its built-in default is not assumed."""
    told = _yes(raw.out("remove-ipc"), r"^b (\w+)")
    files = sorted(
        ((match[0].rpartition("/")[2], text) for match, text in raw.matching(r"/(etc|usr/lib)/systemd/logind\.conf\.d/.*\.conf")),
        key=lambda pair: pair[0],
    )
    texts = [raw.text("/etc/systemd/logind.conf") or "", *(text for _, text in files)]
    lines = [line for text in texts for line in text.splitlines() if re.match(r"\s*RemoveIPC\s*=", line)]
    return told if told is not None or not lines else _yes(lines[-1], r"=\s*(\w+)")


def _process(each: Mapping[str, Any]) -> Process:
    return Process(each["pid"], each["kind"], each.get("name") or "?", each.get("user"), each.get("sid"), each.get("container"))


def _login(node: Mapping[str, Any]) -> Login:
    elsewhere = {tool: tuple(places) for tool, places in node["elsewhere"].items()}
    given = (node["uid"], node["user"], node["home"], tuple(node["groups"]), node["path"], node["tools"])
    return Login(*given, elsewhere, node["steering"])


def clock_offset(sent_unix_s: float, begin_unix_s: float, end_unix_s: float, received_unix_s: float) -> Clock:
    """Bounds of the offset: the node read `begin` after we had sent the request and `end` before we had the answer."""
    low, high = end_unix_s - received_unix_s, begin_unix_s - sent_unix_s
    return Clock(min(low, high), max(low, high))
