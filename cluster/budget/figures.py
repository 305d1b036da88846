"""The constants of the memory budget, each with its source. GiB per rank unless named otherwise.

Those of the Sparks are published ones, none was measured by us: recipe: the public recipe's reference and launcher at commit
98cf18fe (2026-09-30); its issues by number. Those of the local kit were measured on this project's machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A constant with what it means and where it is from. kind: measured (by its source), derived (by us, from measured), bound."""

    gib: float
    kind: str
    source: str


TOTAL = Figure(121.69, "measured", "unified memory that CUDA reports on a Spark (GLM 47)")

# By number of ranks. The upper end where the source gives a range: a budget must not be short.
WEIGHTS = {
    2: Figure(82.06, "measured", "load per rank on two nodes, 79.65-82.06 (recipe); the upper end"),
    3: Figure(55.75, "measured", "load per rank on three nodes (recipe)"),
    4: Figure(43.8, "derived", "one part split over ranks and one on each rank, solved from two and three nodes: 42.6-43.8; the upper end"),
}
GRAPHS = Figure(2.4, "measured", "the estimate for CUDA graphs that CG_ESTIMATE=0 gives back to the KV (recipe)")
GROUPED = Figure(560 / 1024, "measured", "what grouped prefill takes from the KV, 560 MiB (recipe); on unless EXL3_FAT_GROUPED=0")
WORKSPACE = Figure(
    1.03,
    "derived",
    "the rest of 0.85 x 121.69 - 12.4 GiB available (GLM 204) after weights, graphs, grouped prefill and 5.0 for the loader",
)
LOADER = Figure(5.0, "measured", "what InstantTensor costs the automatic KV size, 4.4-5.6 (GLM 204), the middle; free again after the load")

# Beside the engine's share, on each node.
# At GPU_MEM_UTIL 0.87 two nodes had about nothing left (0.13 x 121.69 = 15.8), at 0.85 four nodes 1-2 GiB (18.3 less that).
HOST = Figure(16.0, "derived", "what was gone beside the engine's share when heads ran out: 15.8 on two nodes, 16.3-17.3 on four (recipe)")
START_HEADROOM = Figure(2.0, "measured", "MemAvailable must exceed GPU_MEM_UTIL x total by this before a launch (recipe's preflight)")
LEAST_FREE = Figure(2.0, "measured", "with less than about 2 GiB available nodes died under load (recipe, two and four nodes)")

# KV. Plain draft KV: 7.4 + 7.1 per million tokens at 7168 tokens a step: 10.98 at 500k, 13.56 at 850k, 14.52 at 1M.
KV_PER_MILLION = Figure(7.1, "measured", "growth of one request's KV, per million tokens (recipe)")
KV_PLAIN_FIXED = Figure(7.4, "measured", "fixed part of one request's KV with plain draft KV and 7168 tokens a step (recipe)")
KV_COMPACT_PER_MILLION = Figure(14 / 1.57, "derived", "a pool of 14 GiB holds 1.57M tokens with compact draft KV (recipe); 11 GiB: 1.23M")

# How far the sums may be off: half the width of the published ranges of weights (2.4) and loader (1.2), added as independent.
UNCERTAINTY_GIB = 1.3

# What a person should keep GPU_MEM_UTIL under, by number of ranks (constraints two-memory, three-memory, four-memory).
UTIL_CEILING = {2: 0.85, 3: 0.80, 4: 0.75}

# The local kit: SmolLM2-135M-Instruct in Q4_1. Resident memory was 198,368 KiB with a context of 2048, 336,656 with 8192, 521,052 with
# two of 8192 (2026-11-29): 23,048 bytes a token, where 30 layers x 3 KV heads x 64 x (key, value) x 2 bytes are 23,040.
LOCAL_WEIGHTS = Figure(98_362_432 / (1 << 30), "measured", "size of the model file")
LOCAL_PROCESS = Figure(0.054, "measured", "resident memory less weights and KV, context 2048")
LOCAL_KV_BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 2
