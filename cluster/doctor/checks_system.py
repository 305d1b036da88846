"""The machine beside the engine: memory as it is now, session rules, boots, left-over and foreign processes, ports, locks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.budget import nodes
from cluster.doctor.checks_gpu import GIB, ours
from cluster.doctor.finding import Check, Finding, Kind, Scene, each_node
from cluster.facts.node import Facts

SWAP_BYTES = GIB  # less is what any kernel moves out in a week
BOOT_SLACK_S = 60

MEMORY = Kind(
    "memory", "info", "the page cache may be given back, yet counts as used for CUDA; `invoke budget` says what is needed", "F4 F17"
)
MEMORY_SHORT = Kind(
    "memory-short", "error", "the engine takes its memory at once and refuses to start, minutes into the launch", "F1 F2 F10"
)
SWAP = Kind("swap-used", "warning", "unified memory ran short before; a rank that is swapped stalls all", "F6 F14")
OOM = Kind("oom-killed", "warning", "the kernel killed processes since the boot for lack of memory", "F6 F13")
EARLYOOM = Kind(
    "earlyoom", "info", "it ends the largest process, the rank, when memory runs short, with a line in its own journal only", "F6"
)
DESKTOP = Kind("desktop-running", "warning", "a desktop holds GPU memory; about 2 GiB come back without one", "F15")
LINGER = Kind(
    "linger", "warning", "at the last logout logind stops the user's services and removes its shared memory: ranks die or hang", "B2 B3"
)
REBOOTED = Kind(
    "node-restarted",
    "warning",
    "the node restarted since a rank was started there: a reset under memory pressure leaves no other trace",
    "F7",
)
ZOMBIES = Kind("zombies", "warning", "somebody starts processes and does not wait for them", "G13")
ENGINE = Kind("foreign-engine", "warning", "another server holds memory and clocks that this kit counts on", "F2 G12")
PORT = Kind("port-held", "error", "rank 0 cannot listen there", "G15", in_check=True)
LOCK = Kind("launch-lock", "info", "another `up`, `down` or `restart` works on the node, or was killed a short while ago", "G16")


def memory(facts: Facts, scene: Scene) -> Iterator[Finding]:
    found = facts.memory
    if found.total_bytes and found.available_bytes is not None and found.free_bytes is not None:
        cache = "" if found.page_cache_bytes is None else f", page cache {found.page_cache_bytes / GIB:.1f}"
        what = f"{found.available_bytes / GIB:.1f} of {found.total_bytes / GIB:.1f} GiB available, free {found.free_bytes / GIB:.1f}{cache}"
        yield MEMORY.at(facts.role, what, "invoke budget")
        yield from _short(facts, scene, {"MemAvailable": found.available_bytes, "MemFree": found.free_bytes})
    if found.swap_used_bytes and found.swap_used_bytes >= SWAP_BYTES:
        what = f"{found.swap_used_bytes / GIB:.1f} GiB of swap are in use; expected less than {SWAP_BYTES / GIB:g}"
        yield SWAP.at(facts.role, what, "find what is large: ps -eo rss,cmd --sort=-rss | head; sudo swapoff -a && sudo swapon -a")
    if scene.sparks and found.oom_kills:
        yield OOM.at(facts.role, f"{found.oom_kills} since the boot; expected 0", "journalctl -k -g 'Out of memory'; invoke budget")


def _short(facts: Facts, scene: Scene, reading: Mapping[str, int]) -> Iterator[Finding]:
    """Less memory than a launch takes. A running rank of ours has taken its part already."""
    running = bool(facts.record) or any(each.record and each.running for each in facts.docker.containers)
    for problem in () if running else nodes.problems(scene.effective, {facts.role: reading}):
        if problem.level == "error":
            yield MEMORY_SHORT.at(facts.role, problem.what, problem.hint)


def services(facts: Facts, scene: Scene) -> Iterator[Finding]:
    if scene.sparks and facts.system.earlyoom:
        yield EARLYOOM.at(facts.role, "earlyoom is active", "journalctl -u earlyoom when a rank ends by SIGTERM or SIGKILL")
    desktop = [process.name for process in facts.system.of_kind("desktop")]
    if scene.sparks and desktop:
        what = f"{', '.join(sorted({*desktop}))} run{'' if len({*desktop}) > 1 else 's'}; default target {facts.system.target or 'unknown'}"
        yield DESKTOP.at(facts.role, what, "sudo systemctl set-default multi-user.target, then restart the node")


def linger(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Concerns what runs as an ordinary user: rootless docker, an image with a user of its own, a rank as a process."""
    system = facts.system
    image = facts.docker.image
    as_user = (
        not scene.docker or bool(facts.docker.rootless) or (image is not None and image.user.partition(":")[0] not in ("", "0", "root"))
    )
    if scene.effective.kit.engine != "vllm" or system.login.uid < 1000 or not as_user or system.linger is not False:
        return
    if system.remove_ipc is not False:
        ipc = "unknown, by default on" if system.remove_ipc is None else "on"
        fix = f"sudo loginctl enable-linger {system.login.user}"
        yield LINGER.at(facts.role, f"Linger is off for {system.login.user}, RemoveIPC is {ipc}", fix)


def restarted(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """A run record of ours that is older than the node's boot."""
    if facts.system.uptime_s is None or facts.system.clock is None:
        return
    # The node's own time: ours, and how far it is ahead. The record's time is the node's as well.
    boot = time.time() + (facts.system.clock.low_s + facts.system.clock.high_s) / 2 - facts.system.uptime_s
    records: list[Mapping[str, Any]] = [each.record for each in facts.docker.containers if each.record]
    for record in [*records, *([facts.record] if facts.record else [])]:
        other = record.get("kernel_boot_id") not in (None, facts.system.boot_id)
        if other or record.get("started_unix_s", boot) < boot - BOOT_SLACK_S:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(boot))
            yield REBOOTED.at(
                facts.role, f"boot {record.get('boot')} was started before the node's own start at {since}", "journalctl -b -1 -e there"
            )


def leftovers(facts: Facts, scene: Scene) -> Iterator[Finding]:
    if facts.system.zombies > 10:
        yield ZOMBIES.at(facts.role, f"{facts.system.zombies} zombies; expected few", "ps -eo ppid,stat,cmd | grep ' Z'; end their parent")
    on_gpu = {app.pid for app in facts.gpu.apps} if facts.gpu else set()
    others = [each for each in facts.system.of_kind("engine") if not ours(facts, each) and each.pid not in on_gpu]
    if others and scene.effective.kit.engine == "vllm":
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield ENGINE.at(facts.role, f"{others[0]}{more} is an inference engine that this tool did not start", "stop it, if nobody needs it")


def ports(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """A running rank of ours holds its own ports."""
    running = any(each.record and each.running for each in facts.docker.containers)
    for port, holder in facts.ports.items():
        mine = running or bool(facts.record and holder and holder.get("sid") == facts.record.get("pid"))
        if holder and not mine:
            who = f"pid {holder['pid']} of {holder['user']}" if holder.get("pid") else "a process of another user"
            name = "PORT" if port == scene.effective.settings.port else "MASTER_PORT"
            yield PORT.at(facts.role, f"{name} {port} is held by {who}", f"stop it, or choose another {name}")


def lock(facts: Facts, scene: Scene) -> Iterator[Finding]:
    try:
        held = json.loads(facts.lock or "null")
        left = held["until_unix_s"] - time.time()
    except (ValueError, TypeError, KeyError):
        return
    if left > 0:
        yield LOCK.at(facts.role, f"held by {held['owner']}, for {left:.0f} s more unless refreshed", "wait for it; it ends by itself")


CHECKS: tuple[Check, ...] = tuple(map(each_node, (memory, services, linger, restarted, leftovers, ports, lock)))
