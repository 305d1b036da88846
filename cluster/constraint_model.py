"""What a constraint is, for which kits it holds, and the derived values that constraints read. Everything here is pure.

Figures are the public recipe's or its users' (two to four DGX Sparks); nothing here was measured by us.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cluster.fields import Settings
from cluster.kits import Kit
from cluster.settings import Effective, is_secret

GIB = 1 << 30
KV_11_GIB, KV_14_GIB = 11811160064, 15032385536  # the two reservations that the recipe published for two nodes
CHECKPOINT_IMAGE_TOKENS = 8000  # largest image of the checkpoint's own processor
OVERLAY_TEMP_ROWS = 512  # what our overlay takes when EXL3_TEMP_ROWS_FUSED is not given (vllm_glm_exl3/settings.py)
_LONG_TEXT = ("extra_args", "glm53_extra_env")  # may hold tokens: named in messages, never shown


@dataclass(frozen=True)
class Scope:
    """The kits for which a constraint holds; `words` name them in the README."""

    words: str
    holds: Callable[[Kit], bool]

    def __call__(self, kit: Kit) -> bool:
        return self.holds(kit)


def _sparks(*sizes: int) -> Callable[[Kit], bool]:
    return lambda kit: kit.hardware == "gb10" and len(kit.nodes) in sizes


EVERY = Scope("every kit", lambda kit: True)
VLLM = Scope("vLLM", lambda kit: kit.engine == "vllm")
LLAMA = Scope("local engine", lambda kit: kit.engine == "llama")
CLUSTER = Scope("several nodes", lambda kit: len(kit.nodes) > 1)
GB10 = Scope("Sparks", lambda kit: kit.hardware == "gb10")
PAIR = Scope("two Sparks", _sparks(2))
TRIPLE = Scope("three Sparks", _sparks(3))
FOUR = Scope("four Sparks", _sparks(4))
THREE_OR_FOUR = Scope("three or four Sparks", _sparks(3, 4))
NOT_PAIR = Scope("Sparks other than two", _sparks(1, 3, 4))
NOT_TRIPLE = Scope("Sparks other than three", _sparks(1, 2, 4))
RING = Scope("ring", lambda kit: kit.topology == "ring")
NOT_RING = Scope("all but the ring", lambda kit: kit.topology != "ring" and kit.engine == "vllm")


@dataclass(frozen=True)
class Constraint:
    """A combination that must not run.

    group: 1..22, the recipe study's list of refusals; 0: ours. settings: the fields whose values and sources are shown.
    broken(effective): False when fine; True when those values say it all; a text with what else must be known.
    rule: follows "do not". evidence: what happened to whom. hint: what to set instead.
    """

    id: str
    group: int
    applies: Scope
    settings: tuple[str, ...]
    broken: Callable[[Effective], str | bool]
    rule: str
    evidence: str
    hint: str


@dataclass(frozen=True)
class OnNodes:
    """A combination that only a look at the nodes can tell: `check` is what doctor or preflight must do before a launch."""

    id: str
    group: int
    check: str


def described(effective: Effective, fields: Iterable[str]) -> str:
    """`NAME is VALUE (SOURCE)` for every field; texts that may hold tokens are named without their value."""
    public = effective.public()
    parts = []
    for field in fields:
        value, source = public[field], effective.sources.get(field, "default")
        if field in _LONG_TEXT:
            parts += [f"{field.upper()} ({source})"] if value else []
        else:
            parts.append(f"{field.upper()} is {'not set' if value is None else value} ({source})")
    return ", ".join(parts)


def placeholders(effective: Effective) -> str:
    """The settings in which a template's CHANGE_ME is left."""
    found = [n for n, v in effective.settings.model_dump().items() if isinstance(v, str) and "CHANGE_ME" in v.upper() and not is_secret(n)]
    return described(effective, found)


# EXTRA_ARGS

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
    "-ac": "--attention-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-q": "--quantization",
}


def flags(settings: Settings) -> dict[str, str]:
    """The long names of the flags in EXTRA_ARGS -> value ("" when none), as vLLM reads them: _ is -, --a.b=c belongs to --a."""
    words = shlex.split(settings.extra_args or "")
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if re.match(r"-\D", name):
            long = _long(name)
            found[long] = value if equals else "" if following.startswith("-") else following
    return found


def _long(name: str) -> str:
    if not name.startswith("--"):
        root = name[:2] if name[:2] in SHORT else name.partition(".")[0]
        return SHORT.get(root, root)
    return name.partition(".")[0].replace("_", "-")


def abbreviates(given: str, full: str) -> bool:
    """Whether vLLM's parser may take `given` for `full`: it accepts the beginning of a flag."""
    return given == full or (len(given) > 5 and given.startswith("--") and full.startswith(given))


# Speculation, graphs

_ADAPTIVE_SET = "2,4,7"


def draft_tokens(settings: Settings) -> int:
    """Tokens drafted per step; 0 without speculation."""
    return {
        "dflash": settings.dflash_tokens,
        "mtp": settings.mtp_tokens,
        "ngram": settings.ngram_tokens,
        "none": 0,
    }[settings.spec_method]


def draft_lengths(settings: Settings) -> set[int]:
    """Every draft length that may occur; words of the adaptive set that are no number are left out (they are refused by themselves)."""
    lengths = {draft_tokens(settings)}
    if settings.spec_method == "dflash" and settings.glm53_adaptive_k not in (None, "off"):
        lengths |= {int(word) for word in adaptive_words(settings) if is_whole(word)}
    return lengths


def adaptive_words(settings: Settings) -> list[str]:
    return [word.strip() for word in (settings.glm53_adaptive_k_set or _ADAPTIVE_SET).split(",")]


def is_whole(word: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", word) is not None


def compact_draft_kv(settings: Settings) -> bool:
    """Whether the drafter's KV is compact: on with dflash unless switched off."""
    return settings.spec_method == "dflash" and settings.glm53_draft_kv_compact != 0


def fp8_groups(settings: Settings) -> set[str]:
    """The dense groups that run in FP8."""
    words = {word.strip() for word in (settings.glm53_dense_fp8 or "off").split(",")} - {"off", ""}
    return {"shared", "dense", "kda", "mla"} if "all" in words else words


# Memory

_FIXED_GIB, _GIB_PER_MILLION = 7.4, 7.1  # one request on two nodes, 7168 tokens a step, plain draft KV: 13.56 GiB at 850k
_COMPACT_850K_GIB = 7.58  # 11 GiB held 1.23M tokens at 850k, 14 GiB 1.57M


def reservation(effective: Effective) -> tuple[int | None, str]:
    """KV cache size in bytes and the setting it comes from: EXTRA_ARGS wins, as vLLM takes the last."""
    given = extra_reservation(effective.settings)
    if given is not None and is_whole_bytes(given):
        return int(given), "extra_args"
    return effective.settings.kv_cache_memory_bytes, "kv_cache_memory_bytes"


def extra_reservation(settings: Settings) -> str | None:
    """The value of --kv-cache-memory-bytes in EXTRA_ARGS, as the recipe's own file has it."""
    found = [value for name, value in flags(settings).items() if abbreviates(name, "--kv-cache-memory-bytes")]
    return found[-1] if found else None


def is_whole_bytes(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,15}", text) is not None


def least_request_gib(effective: Effective) -> float:
    """A lower bound of the KV that one request of MAX_MODEL_LEN needs on each rank, GiB."""
    s = effective.settings
    share = _GIB_PER_MILLION * s.max_model_len / 1e6
    if not PAIR(effective.kit):
        return share
    if compact_draft_kv(s):
        return max(share, _COMPACT_850K_GIB * min(s.max_model_len, 850_000) / 850_000)
    return share + (_FIXED_GIB if s.max_num_batched_tokens >= 7168 else 0)


# Vision

_UNLIMITED = 999  # vLLM's limit for a kind of input that is not named


def images_per_request(settings: Settings) -> int | None:
    """The images one request may hold; None when LIMIT_MM is not understood."""
    try:
        limits = json.loads(settings.limit_mm or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(limits, dict):
        return None
    counts = {name: value.get("count", _UNLIMITED) if isinstance(value, dict) else value for name, value in limits.items()}
    if any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in counts.values()):
        return None
    return int(counts.get("image", _UNLIMITED))


def image_tokens(settings: Settings) -> int:
    """Tokens of the largest image."""
    return settings.mm_image_tokens or CHECKPOINT_IMAGE_TOKENS


def vision_tokens(settings: Settings) -> int:
    """Image tokens that one request may bring: no more than it may be long."""
    return min((images_per_request(settings) or 0) * image_tokens(settings), settings.max_model_len)
