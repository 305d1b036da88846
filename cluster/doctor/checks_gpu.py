"""GPUs and versions: who computes there, clocks, temperatures, drivers and kernels of all nodes. Only Sparks have GPUs here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.doctor.finding import CLUSTER, Check, Finding, Kind, Scene, differing, each_node
from cluster.facts.node import Facts
from cluster.facts.system import Process

GIB = 1 << 30
BIG_APP_BYTES = 4 * GIB  # less may be a desktop's or a monitor's
SLOW_MHZ, SLOW_SHARE = 1400, 0.6  # field report H8: a Spark in a low-power state under load
SPIN_SHARE, SPIN_WATTS = 0.9, 30  # A22: 96 % at 20 W while a collective waits
HOT_C = 85

GPU_NONE = Kind("gpu-none", "error", "nothing can be served without it; a GPU that vanished needs a restart", "F7")
GPU_OTHER = Kind("gpu-other", "warning", "the kit's figures and limits are those of a GB10")
GPU_BUSY = Kind("gpu-busy", "error", "on unified memory whatever it holds is missing from the start check", "F2 F1")
GPU_SHARED = Kind("gpu-shared", "warning", "whatever it holds is missing from the start check", "F2")
GPU_SLOW = Kind("gpu-slow", "warning", "one slow rank slows every token of all; seen after a bad power negotiation", "H8 H15 H1")
GPU_CAP = Kind("gpu-cap", "warning", "one capped rank slows every token of all", "H1 H8")
GPU_SLOWED = Kind("gpu-throttled", "warning", "the GPU runs slower than it was asked to", "H8 H15")
GPU_SPIN = Kind("gpu-spin", "warning", "high use at low power is waiting for another rank: the collective hangs", "A22 G5")
GPU_HOT = Kind("gpu-hot", "warning", "it will throttle, or already does", "H15")
DRIVER = Kind("driver-mismatch", "warning", "memory accounting and NCCL's paths differ between drivers", "F1 A20")
KERNEL = Kind("kernel-mismatch", "warning", "an update takes effect at the next restart, often on one node only", "A20 A24 F7")
PAGES = Kind("page-size-mismatch", "warning", "a kernel with 64 KiB pages beside one with 4 KiB: load times and memory differ")
KNOWN_BAD = Kind("known-bad-version", "warning", "others could not run with it", "A20 A24")


@dataclass(frozen=True)
class Bad:
    """A version that others could not run with. where: kernel, driver or firmware; pattern: searched in its text."""

    where: str
    pattern: str
    what: str
    instead: str
    source: str


KNOWN: tuple[Bad, ...] = (
    Bad(
        "kernel", r"^7\.0\.0-31\b", "memory registration fails (ibv_reg_mr_iova2 ENOMEM): NCCL cannot start",
        "boot 7.0.0-30, or a 6.17 kernel", "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259, 2026-09-09",
    ),
)  # fmt: skip


def ours(facts: Facts, process: Process) -> bool:
    """Whether a process belongs to what this tool started on the node."""
    containers = {each.id for each in facts.docker.containers if each.record is not None}
    return process.container in containers or bool(facts.record and process.sid == facts.record.get("pid"))


def present(facts: Facts, scene: Scene) -> Iterator[Finding]:
    if not scene.sparks or facts.gpu_unknown:
        return
    if facts.gpu is None:
        yield GPU_NONE.at(facts.role, "nvidia-smi shows no GPU", "nvidia-smi there; sudo dmesg | grep -i nvrm; restart the node")
    elif facts.gpu.name and "GB10" not in facts.gpu.name:
        yield GPU_OTHER.at(facts.role, f"the GPU is {facts.gpu.name}; expected a GB10", "another kit, or settings of your own")


def busy(facts: Facts, scene: Scene) -> Iterator[Finding]:
    """Processes on the GPU that are not ours. What the driver does not measure is taken for large when it is an engine."""
    apps = {app.pid: app for app in facts.gpu.apps} if facts.gpu and scene.sparks else {}
    engines = {process.pid for process in facts.system.of_kind("engine")}
    known = {process.pid: process for process in facts.system.of_kind("gpu")}
    for pid, app in apps.items():
        process = known.get(pid)
        if process and ours(facts, process):
            continue
        size = "of unknown size" if app.memory_bytes is None else f"{app.memory_bytes / GIB:.1f} GiB"
        engine = pid in engines or re.search(r"vllm|llama|sglang|ollama|trtllm", app.name, re.IGNORECASE)
        kind = GPU_BUSY if engine or (app.memory_bytes or 0) >= BIG_APP_BYTES else GPU_SHARED
        yield kind.at(
            facts.role, f"{process or f'pid {pid} ({app.name})'} computes on the GPU, {size}", "stop it; this tool did not start it"
        )


def clocks(scene: Scene) -> Iterator[Finding]:
    """Under load only: an idle GPU's clock is low by itself."""
    loaded = {role: gpu.sm_mhz for role, facts in scene.nodes.items() if (gpu := facts.gpu) and scene.sparks and gpu.busy and gpu.sm_mhz}
    fastest = max(loaded.values(), default=0)
    for role, mhz in loaded.items():
        if mhz < SLOW_MHZ or mhz < SLOW_SHARE * fastest:
            what = f"SM clock {mhz:g} MHz under load; the fastest node has {fastest:g}, expected is {SLOW_MHZ} or more"
            yield GPU_SLOW.at(role, what, "unplug the power supply for a minute; nvidia-smi --query-gpu=clocks.max.sm --format=csv")


def caps(scene: Scene) -> Iterator[Finding]:
    highest = {role: facts.gpu.max_sm_mhz for role, facts in scene.nodes.items() if facts.gpu and facts.gpu.max_sm_mhz}
    different = differing({role: f"{mhz:g}" for role, mhz in highest.items()}) if scene.sparks else ""
    if different:
        yield GPU_CAP.at(
            CLUSTER, f"highest SM clock in MHz: {different}", "the same cap on all nodes: sudo nvidia-smi --reset-gpu-clocks (-rgc)"
        )


def state(facts: Facts, scene: Scene) -> Iterator[Finding]:
    gpu = facts.gpu
    if gpu is None or not scene.sparks:
        return
    if gpu.slowed:
        yield GPU_SLOWED.at(
            facts.role, f"the driver reports: {', '.join(gpu.slowed)}", "cool it; check the power supply; unplug for a minute"
        )
    if gpu.utilisation is not None and gpu.power_w is not None and gpu.utilisation >= SPIN_SHARE and gpu.power_w < SPIN_WATTS:
        what = f"{gpu.utilisation:.0%} use at {gpu.power_w:g} W; real work takes far more than {SPIN_WATTS} W"
        yield GPU_SPIN.at(facts.role, what, "invoke status; the last lines of every rank: invoke logs --rank N")
    if gpu.temperature_c is not None and gpu.temperature_c >= HOT_C:
        yield GPU_HOT.at(facts.role, f"{gpu.temperature_c:g} C; expected below {HOT_C}", "more air around the Spark; dust")


def versions(scene: Scene) -> Iterator[Finding]:
    if not scene.several:
        return
    nodes = scene.nodes.items()
    drivers = differing({role: facts.gpu.driver for role, facts in nodes if facts.gpu})
    kernels = differing({role: facts.system.kernel for role, facts in nodes})
    pages = differing({role: facts.system.page_bytes for role, facts in nodes})
    if drivers:
        yield DRIVER.at(CLUSTER, f"NVIDIA driver: {drivers}", "the same driver on every node, then restart")
    if kernels:
        yield KERNEL.at(CLUSTER, f"kernel: {kernels}", "the same kernel on every node; sudo apt-mark hold it")
    if pages:
        yield PAGES.at(CLUSTER, f"page size in bytes: {pages}", "the same kernel flavour on every node")


def known_bad(facts: Facts, scene: Scene) -> Iterator[Finding]:
    running = {"kernel": facts.system.kernel, "driver": facts.gpu.driver if facts.gpu else None}
    running["firmware"] = next((hca.firmware for hca in facts.rdma.hcas if hca.firmware), None)
    for bad in KNOWN:
        text = running.get(bad.where)
        if scene.sparks and text and re.search(bad.pattern, text):
            yield KNOWN_BAD.at(facts.role, f"{bad.where} {text}: {bad.what} ({bad.source})", bad.instead)


CHECKS: tuple[Check, ...] = (each_node(present), each_node(busy), clocks, caps, each_node(state), versions, each_node(known_bad))
