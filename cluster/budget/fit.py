"""Adding up: settings -> lines, pool, verdict, advice. Pure; no node is asked.

Two things must fit on every rank: one request of MAX_MODEL_LEN into the KV pool, or the engine refuses after minutes of loading; and
the engine with the host side into the node, or the node dies under load.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from cluster.budget import figures as f
from cluster.constraint_memory import MEMORY
from cluster.constraint_model import GIB, KV_11_GIB, KV_14_GIB, compact_draft_kv, least_request_gib, reservation
from cluster.constraints import broken
from cluster.errors import BadSettings
from cluster.settings import Effective

Verdict = Literal["fits", "tight", "at risk", "does not fit", "known not to boot", "no figures"]


@dataclass(frozen=True)
class Line:
    """One share of a rank's memory, GiB. part: engine, kv, host, or load: held while loading, so that the automatic pool sees it."""

    part: Literal["engine", "load", "kv", "host"]
    name: str
    gib: float
    source: str


@dataclass(frozen=True)
class Budget:
    """A rank's memory. GiB throughout. total: of the node, None for a machine that is not of a known kind.

    pool: KV cache; request: what one request of MAX_MODEL_LEN needs of it, at least; per_token_bytes: growth of a request.
    spare_kv = pool - request; spare_node: total less all lines that stay. known: the memory constraints that refuse these settings.
    """

    kit: str
    ranks: int
    total: float | None
    lines: tuple[Line, ...]
    pool: float
    request: float
    per_token_bytes: int
    known: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def spare_kv(self) -> float:
        return self.pool - self.request

    @property
    def needed(self) -> float:
        """What stays taken once the server is ready."""
        return sum(line.gib for line in self.lines if line.part != "load")

    @property
    def spare_node(self) -> float:
        """What is left of the node; without end where its size is not known."""
        return math.inf if self.total is None else self.total - self.needed

    @property
    def at_once(self) -> float:
        """Requests of full length that the pool holds."""
        return self.pool / self.request if self.request else math.inf

    @property
    def verdict(self) -> Verdict:
        if not self.lines:
            return "no figures"
        if self.known:
            return "known not to boot"
        if self.spare_kv < 0:
            return "does not fit"
        if self.spare_node < f.LEAST_FREE.gib:
            return "at risk"
        return "tight" if self.total is not None and self.spare_kv < f.UNCERTAINTY_GIB else "fits"

    @property
    def fits(self) -> bool | None:
        """None: no figures for this kit."""
        return None if self.verdict == "no figures" else self.verdict in ("fits", "tight")


def budget(effective: Effective) -> Budget:
    """The budget of one rank, with advice when it does not fit."""
    plain = _sums(effective)
    return plain if plain.fits in (True, None) else dataclasses.replace(plain, advice=tuple(_advice(effective, plain)))


def _sums(effective: Effective) -> Budget:
    kit, ranks = effective.kit, len(effective.kit.nodes)
    known = tuple(f"{rule.id}: {what}" for rule, what in broken(effective, MEMORY)) if kit.hardware == "gb10" else ()
    if kit.engine == "llama":
        return _local(effective)
    if kit.hardware != "gb10" or ranks not in f.WEIGHTS:
        return Budget(kit.name, ranks, None, (), 0, 0, 0, known, ())
    engine = _engine(effective)
    pool = _pool(effective, engine)
    per_token = f.KV_COMPACT_PER_MILLION if _compact(effective) else f.KV_PER_MILLION
    lines = (*engine, Line("kv", *_pool_words(effective, pool)), Line("host", "host side, at its peak", f.HOST.gib, f.HOST.source))
    bytes_each = round(per_token.gib * GIB / 1e6)
    return Budget(kit.name, ranks, f.TOTAL.gib, lines, pool, least_request_gib(effective), bytes_each, known, ())


def _local(effective: Effective) -> Budget:
    """The local kit: the pool is made for MAX_NUM_SEQS requests of full length; the machine's own size is not looked at."""
    s = effective.settings
    request = s.max_model_len * f.LOCAL_KV_BYTES_PER_TOKEN / GIB
    pool = request * s.max_num_seqs
    lines = (
        Line("engine", "weights", f.LOCAL_WEIGHTS.gib, f.LOCAL_WEIGHTS.source),
        Line("engine", "process and buffers", f.LOCAL_PROCESS.gib, f.LOCAL_PROCESS.source),
        Line("kv", "KV pool", pool, f"MAX_NUM_SEQS {s.max_num_seqs} x MAX_MODEL_LEN {s.max_model_len}"),
    )
    return Budget(effective.kit.name, 1, None, lines, pool, request, f.LOCAL_KV_BYTES_PER_TOKEN, (), ())


def _compact(effective: Effective) -> bool:
    return len(effective.kit.nodes) == 2 and compact_draft_kv(effective.settings)


def _engine(effective: Effective) -> list[Line]:
    s = effective.settings
    lines = [Line("engine", "weights and drafter", f.WEIGHTS[len(effective.kit.nodes)].gib, f.WEIGHTS[len(effective.kit.nodes)].source)]
    if not s.enforce_eager:
        lines.append(Line("engine", "CUDA graphs", f.GRAPHS.gib, f.GRAPHS.source))
    if s.exl3_fat_grouped != 0:
        lines.append(Line("engine", "grouped prefill", f.GROUPED.gib, f.GROUPED.source))
    lines.append(Line("engine", "workspace", f.WORKSPACE.gib, f.WORKSPACE.source))
    if "instanttensor" in (s.load_format or ""):
        lines.append(Line("load", "loader buffers", f.LOADER.gib, f.LOADER.source))
    return lines


def _pool(effective: Effective, engine: list[Line]) -> float:
    """The KV pool: as reserved, else what GPU_MEM_UTIL leaves. With CG_ESTIMATE=0 the graphs are not held back from it."""
    size, _ = reservation(effective)
    if size is not None:
        return size / GIB
    s = effective.settings
    held = sum(line.gib for line in engine if s.cg_estimate or line.name != "CUDA graphs")
    return max(0.0, s.gpu_mem_util * f.TOTAL.gib - held)


def _pool_words(effective: Effective, pool: float) -> tuple[str, float, str]:
    size, field = reservation(effective)
    if size is None:
        return "KV pool (automatic)", pool, f"what GPU_MEM_UTIL {effective.settings.gpu_mem_util:g} leaves of {f.TOTAL.gib} GiB"
    return "KV pool (reserved)", pool, f"{field.upper()} ({effective.sources.get(field, 'default')})"


def changed(effective: Effective, **values: Any) -> Effective:
    """The same launch with other settings."""
    return dataclasses.replace(effective, settings=effective.settings.model_copy(update=values))


def _advice(effective: Effective, now: Budget) -> list[str]:
    """The single changes that make it fit, each with what it leaves; in the order of what they cost the user."""
    found = []
    for words, values in _knobs(effective, now):
        after = _sums(changed(effective, **values))
        if after.fits and after.spare_kv >= 0:
            found.append(f"{words}: KV spare {after.spare_kv:+.1f} GiB, node spare {after.spare_node:+.1f} GiB")
    return found or ["no single setting makes it fit: lower MAX_MODEL_LEN and GPU_MEM_UTIL together, or use more nodes"]


def _knobs(effective: Effective, now: Budget) -> list[tuple[str, dict[str, Any]]]:
    s, ranks = effective.settings, now.ranks
    held = sum(line.gib for line in now.lines if line.part in ("engine", "load"))
    # round() first: 0.85 must not become 0.86 by its last bit
    share = math.ceil(round((held + now.request) / f.TOTAL.gib * 100, 6)) / 100
    down = min(math.floor(round((f.TOTAL.gib - f.HOST.gib - f.LEAST_FREE.gib) / f.TOTAL.gib * 100, 6)) / 100, f.UTIL_CEILING[ranks])
    knobs: list[tuple[str, dict[str, Any]]] = []
    if s.spec_method == "dflash" and s.glm53_draft_kv_compact == 0 and ranks == 2:
        knobs.append(("GLM53_DRAFT_KV_COMPACT=1", {"glm53_draft_kv_compact": 1}))
    if reservation(effective)[1] == "kv_cache_memory_bytes" and (now.known or now.spare_kv < 0):
        size = next((size for size in (KV_11_GIB, KV_14_GIB) if size >= now.request * GIB), math.ceil(now.request) * GIB)
        knobs.append((f"KV_CACHE_MEMORY_BYTES={size} ({size // GIB} GiB)", {"kv_cache_memory_bytes": size}))
    if now.spare_kv < 0 and share > s.gpu_mem_util and share <= f.UTIL_CEILING[ranks] + 1e-9:
        knobs.append((f"GPU_MEM_UTIL={share:g} (+{share - s.gpu_mem_util:.2f})", {"gpu_mem_util": share}))
    if s.gpu_mem_util > down:
        knobs.append((f"GPU_MEM_UTIL={down:g} (-{s.gpu_mem_util - down:.2f})", {"gpu_mem_util": down}))
    if "instanttensor" in (s.load_format or ""):
        knobs.append(("LOAD_FORMAT= (the plain loader: minutes slower to load)", {"load_format": None}))
    length = longest(effective, now.pool)
    if length and length < s.max_model_len:
        knobs.append((f"MAX_MODEL_LEN={length}", {"max_model_len": length}))
    return knobs


def longest(effective: Effective, pool: float) -> int:
    """The longest MAX_MODEL_LEN, a multiple of 1000, whose request fits into `pool` GiB; 0 when none does."""
    low, high = 0, effective.settings.max_model_len // 1000
    while low < high:
        middle = (low + high + 1) // 2
        fits = least_request_gib(changed(effective, max_model_len=middle * 1000)) <= pool
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * 1000


def refuse(effective: Effective) -> None:
    """Raise BadSettings when the KV pool is short by more than the figures' uncertainty: that never boots, and takes minutes to say so.

    What the constraints refuse already is theirs to say. Who knows better than the figures gives KV_CACHE_MEMORY_BYTES.
    """
    made = budget(effective)
    if made.lines and not made.known and made.spare_kv < -f.UNCERTAINTY_GIB:
        what = (
            f"kit {made.kit}: one request of {effective.settings.max_model_len} tokens needs {made.request:.1f} GiB of KV on each rank, "
            f"about {made.pool:.1f} GiB are there"
        )
        raise BadSettings(what, hint="; or ".join(advice.partition(":")[0] for advice in made.advice) + "; invoke budget shows the sum")


def said(effective: Effective) -> list[str]:
    """What a launch says of the budget: one line for kits of Sparks. Raises BadSettings, see refuse."""
    made = budget(effective)
    refuse(effective)
    if made.total is None:
        return []
    kv = f"KV pool {made.pool:.1f} GiB for requests of {made.request:.1f}"
    return [f"memory budget: {made.verdict}; {kv} (spare {made.spare_kv:+.1f}), node spare {made.spare_node:+.1f} GiB"]
