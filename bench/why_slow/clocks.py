"""What nvidia-smi says of each node under load, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIELDS = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw", "utilization.gpu", "clocks_event_reasons.active")
ARGV = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")

# Bits of clocks_event_reasons.active (NVML): the ones that mean heat, and those that mean power.
_HOT = 0x20 | 0x40
_POWER = 0x4 | 0x8 | 0x80
LOW_MHZ = 1400.0  # below this under load a GB10 is in a low-power state (field reports name 513 MHz)
LOW_SHARE, CAPPED_SHARE = 0.60, 0.93  # of the fastest node; 2190 of 2480-2535 MHz cost 5-6 % decode
SPIN_UTILISATION, SPIN_WATTS = 90.0, 25.0  # 96 % at 20-21 W: a rank that waits in a collective
BUSY = 50.0


@dataclass(frozen=True)
class NodeClock:
    """One node's GPU now: MHz, degrees Celsius, watts, percent; None where the driver does not say."""

    node: str
    sm_mhz: float | None
    max_mhz: float | None
    celsius: float | None
    watts: float | None
    utilisation: float | None
    reasons: int | None


def parse(node: str, text: str) -> NodeClock | None:
    """The first GPU of the output of ARGV; None when there is no such line."""
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(FIELDS):
            sm, most, celsius, watts, load = (_number(word) for word in words[:5])
            reasons = int(words[5], 16) if words[5].startswith("0x") else None
            return NodeClock(node, sm, most, celsius, watts, load, reasons)
    return None


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def wrong(nodes: Sequence[NodeClock]) -> list[tuple[str, str, str]]:
    """(cause, what, what to try) for each thing that slows a node; only nodes under load are judged by their clock."""
    best = max((node.sm_mhz for node in nodes if node.sm_mhz), default=0.0)
    return [found for node in nodes for found in _of_node(node, best)]


def _of_node(node: NodeClock, best: float) -> list[tuple[str, str, str]]:
    found = []
    busy = (node.utilisation or 0) >= BUSY
    shown = f"{node.node}: SM clock {_shown(node.sm_mhz, 'MHz')}, {_shown(node.watts, 'W')}, {_shown(node.celsius, 'C')}"
    if busy and node.watts is not None and (node.utilisation or 0) >= SPIN_UTILISATION and node.watts <= SPIN_WATTS:
        found.append(
            ("spinning", f"{shown} at {node.utilisation:.0f} % load: it waits for another rank", "look at the other ranks: invoke status")
        )
    elif busy and node.sm_mhz and (node.sm_mhz < LOW_MHZ or node.sm_mhz < LOW_SHARE * best):
        found.append(("low-power", f"{shown} under load: a low-power state", "unplug that node's power for a minute, then start again"))
    elif busy and node.sm_mhz and node.sm_mhz < CAPPED_SHARE * best:
        found.append(
            ("capped", f"{shown}, the fastest node {best:.0f} MHz: its clock is capped", "nvidia-smi -rgc there, or the same cap on all")
        )
    if node.reasons and node.reasons & _HOT:
        found.append(("hot", f"{shown}: slowed down by heat", "its fan, its surroundings, or a lower clock on every node"))
    if node.reasons and node.reasons & _POWER and not any(cause == "low-power" for cause, _, _ in found):
        found.append(("power-limited", f"{shown}: slowed down by its power limit", "its power supply; unplug it for a minute"))
    return found


def _shown(value: float | None, unit: str) -> str:
    return f"? {unit}" if value is None else f"{value:.0f} {unit}"
