"""The published figures (results/published/published-results.csv) that a receipt can be held against. Pure but for the file."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "results" / "published" / "published-results.csv"

TOPOLOGY = {"spark2": "TP2", "spark3": "TP3", "spark4": "TP4 switched", "ring4": "TP4 switchless ring"}
# The protocol codes of the file, the one closest to ours first; see results/published/README.md.
PROTOCOLS = {
    "P2": "the public bench_decode script: single stream, 400 tokens, TTFT excluded, whole answer to end of stream, no salt, median of 5",
    "P2-like": "close to the public bench_decode script",
    "P0": "harness not named: temperature 0, thinking off, TTFT excluded",
    "P9": "described only by its source",
}
# Rows that show a fault, not what the hardware does.
_FAULTY = ("broken", "slow step", "during")
_PER_STEP = re.compile(r"([\d.]+)/step")
# Acceptance by position, k = 7 (rows per-position accept of 2026-08).
PER_POSITION = {
    "structured": (0.98, 0.98, 0.94, 0.94, 0.91, 0.83, 0.83),
    "prose": (0.75, 0.58, 0.41, 0.28, 0.16, 0.09, 0.06),
}
# Cold prefill, 8k tokens (2026-09-28, two nodes), tokens per second.
PREFILL_TOK_S = 1411.0


@dataclass(frozen=True)
class Reference:
    """A published single-stream decode rate. accepted_per_step: drafted tokens accepted in each step, without the bonus token."""

    date: str
    topology: str
    profile: str
    phase: str
    decode_tok_s: float
    protocol: str
    source: str
    note: str
    accepted_per_step: float | None

    @property
    def step_s(self) -> float | None:
        """Time of one engine step: (1 + accepted per step) / rate."""
        return None if self.accepted_per_step is None else (1 + self.accepted_per_step) / self.decode_tok_s

    def __str__(self) -> str:
        return f"{self.decode_tok_s:g} tok/s ({self.date}, {self.topology}, {self.profile}; {self.protocol}: {PROTOCOLS[self.protocol]})"


@functools.cache
def references() -> tuple[Reference, ...]:
    """Every plain decode rate of the vLLM recipe in the file, one for each phase that a row states."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(found for row in csv.DictReader(file) for found in _of_row(row))


def _of_row(row: dict[str, str]) -> list[Reference]:
    if row["metric"] != "decode" or not row["profile"].startswith("vLLM EXL3") or row["protocol"] not in PROTOCOLS:
        return []
    if any(word in f"{row['profile']} {row['note']}" for word in _FAULTY):
        return []
    phases, values = row["workload"].split(" / "), row["value"].split(" / ")
    if len(phases) != len(values):
        return []
    steps = [float(step) for step in _PER_STEP.findall(row["note"])]
    made = []
    for at, (phase, value) in enumerate(zip(phases, values, strict=True)):
        number = re.fullmatch(r"~?([\d.]+)", value)
        if number:
            plain = re.sub(r" (x1|C1)$", "", phase).replace("short code", "short-code")
            step = steps[at] if len(steps) == len(phases) else None
            made.append(
                Reference(
                    row["date"], row["topology"], row["profile"], plain, float(number[1]), row["protocol"], row["source"], row["note"], step
                )
            )
    return made


def of(kit: str | None, phase: str) -> list[Reference]:
    """The references of the same kit and phase: the closest protocol first, then the newest."""
    same = [each for each in references() if each.topology == TOPOLOGY.get(kit or "") and each.phase == phase]
    newest = sorted(same, key=lambda each: each.date, reverse=True)
    return sorted(newest, key=lambda each: (list(PROTOCOLS).index(each.protocol), each.accepted_per_step is None))


def published(kit: str | None, phase: str) -> Reference | None:
    """What the recipe's authors state for their default now: the newest row of a default profile, else the first of `of`."""
    same = of(kit, phase)
    defaults = sorted((each for each in same if each.profile.endswith("default")), key=lambda each: each.date)
    return defaults[-1] if defaults else same[0] if same else None
