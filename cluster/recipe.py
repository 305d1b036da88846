"""The public recipe's `.env` names beyond our settings, so that an existing file keeps working.

Two kinds: variables that its engine overlay reads, which go to every rank as they are; and names that have nothing to do here, each
with the reason, which are noted once and left out. Anything else is an unknown name, and refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

EXTRA = "GLM53_EXTRA_ENV"

# Read by the recipe's overlay in the container, or by ours; effective in an image that has it.
OVERLAY = re.compile(
    r"""GLM53_(APC_NO_STORE|KV_CAPACITY_LOG|COLD_LOAD_UMA|COLD_LOAD_STAGE_MMAP|COOP_GEOMETRY|EXL3_MOE_FAST|INDEXER_WORKSPACE|SPINWAIT_MS
        |SUPPRESS_STOPS_IN_REASONING|MIXED_PREFILL_\w+|FAIR_PREFILL_\w+|ADAPTIVE_K_(ALPHA|MARGIN|MIN_STEPS|SATURATE|HIST)|DENSE_EXL3_\w+
        |KV_OFFLOAD_\w+|LOAD_CLONE|LOAD_PREFETCH|TOOL_CHOICE_NONE|DRAFTER_HIT|RELEASE_INDEXER_LOGITS)
      | EXL3_(MOE_PATH|DETERMINISTIC|PDL_SM12X|INT8_GEMV)
      | EXL3_(FUSED_MOE|FAT_KERNEL|FAT_BATCHED|FAT_SORTED|FAT_KERNEL_\w+|MOE_ROW_TILE)
      | DEFAULT_MAX_NEW_TOKENS | INSTANTTENSOR_\w+ | ABLIT_\w+ | HAREM_KDA_FLASHKDA | VLLM_SM120_SPARSE_MLA_SLICE_TOKENS""",
    re.VERBOSE,
)

_RETIRED = (
    (r"EXPECTED_SHARDS", "the number of shards is read from the checkpoint's index"),
    (r"MODEL_CACHE_NAME|DFLASH_CACHE_NAME|MODEL_FALLBACK_CACHE_NAME", "the cache folder follows from the repository's name"),
    (r"CONTAINER_\w+", "containers are called spark-lab-ROLE"),
    (r"WORKER\d?_HOME", "~ is each node's own home; see *_HF_HOME"),
    (r"(\w+_)?(TRITON|TILELANG|NV)_HOST_CACHE|(TRITON|TILELANG)_CACHE_DIR|WORKER\d?_VLLM_CACHE", "*_CACHE_ROOT holds all compile caches"),
    (r"\w*_(PATCH|OVERLAY|TEMPLATE)_HOST|DFLASH2_\w+_HOST|CHAT_TEMPLATE_HOST", "no files are mounted over the engine's own"),
    (r"(\w+_)?SOCKET_IFNAME", "*_CX7_IF names the device"),
    (r"(\w+_)?HOST_IP", "*_IP is the address of the ranks"),
    (r"WORKER\d?_NCCL_HOST_DIR", "NCCL_HOST_DIR is the folder on every node"),
    (r"NCCL_(MAX|MIN)_NCHANNELS", "NCCL_NCHANNELS sets both"),
    (r"(TORCH|FLASHINFER)_CUDA_ARCH_LIST", "12.1a is set on every rank"),
    (r"PULL|BUILD|SKIP_BUILD|SKIP_SHIP|IMAGE_PLATFORM", "invoke pull, build and ship do that; SKIP_PULL=1 leaves images alone"),
    (r"GHCR_\w+", "docker login on the head"),
    (r"REFRESH_WEIGHTS|FORCE_SYNC", "invoke verify finds what is wrong, invoke download and invoke resync repair it"),
    (r"HF_BIN", "the huggingface_hub library downloads"),
    (r"NFS_(VOLUME|CONTAINER|IMAGE|CLIENTS|OPTS_CLIENT|SERVER_IP_\w+)", "invoke resync prints the export and mount commands"),
    (r"GLM53_(HOST_MEM_HYGIENE|PREFLIGHT_\w+|VALIDATE_PYTHON|BOOT_SHAPE_WARMUP|WARMUP_\w+)", "this version does not do that"),
    (r"OFFLOAD_\w+|SKIP_OVERLAY_VERIFY", "this version does not do that"),
    (r"TAIL", "invoke logs --follow"),
)


def retired(name: str) -> str | None:
    """Why a name of the recipe has nothing to do here; None for every other name."""
    return next((reason for pattern, reason in _RETIRED if re.fullmatch(pattern, name)), None)


def passed_on(values: Mapping[str, str]) -> dict[str, str]:
    """`values` with the overlay's variables moved into GLM53_EXTRA_ENV, behind what it holds already."""
    moved = [shlex.quote(f"{name}={value}") for name, value in values.items() if OVERLAY.fullmatch(name) and value != ""]
    kept = {name: value for name, value in values.items() if not OVERLAY.fullmatch(name)}
    return {**kept, EXTRA: " ".join([*filter(None, [kept.get(EXTRA)]), *moved])} if moved else kept
