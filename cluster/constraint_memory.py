"""Constraints of formats, vision and memory: groups 1 to 9. See constraint_model.Constraint for the fields."""

from __future__ import annotations

from cluster.constraint_model import (
    GB10,
    GIB,
    KV_11_GIB,
    KV_14_GIB,
    PAIR,
    THREE_OR_FOUR,
    VLLM,
    Constraint,
    compact_draft_kv,
    extra_reservation,
    flags,
    image_tokens,
    images_per_request,
    is_whole_bytes,
    least_request_gib,
    reservation,
    vision_tokens,
)
from cluster.settings import Effective

VISION_BUDGET_TOKENS = 98_304  # 48 images of 2048: the most the recipe ships; 236k ended an engine
_BAD_IMAGES = ("glm53-flash-sm121:v8", "amd64", "x86_64", "sm120")


def _attention_pin(e: Effective) -> str:
    text = (e.settings.extra_args or "").lower().replace("_", "-")
    pinned = "attention-backend" in text or "--attention-config" in flags(e.settings)
    variable = "VLLM_ATTENTION_BACKEND" in (e.settings.glm53_extra_env or "").upper()
    return "an attention backend is pinned there" if pinned or variable else ""


def _reservation_is_short(e: Effective) -> str:
    size, _ = reservation(e)
    need = least_request_gib(e)
    if size is None or size >= need * GIB:
        return ""
    return f"one request of that length needs at least {need:.2f} GiB on each rank, reserved are {size / GIB:.2f}"


def _inherited_reservation(e: Effective) -> str:
    size, field = reservation(e)
    source = e.sources.get(field, "default")
    if size not in (KV_11_GIB, KV_14_GIB) or " line " not in source:
        return ""
    return f"{size} bytes from {source} is a two-node figure, and this kit has {len(e.kit.nodes)} nodes"


MEMORY: tuple[Constraint, ...] = (
    Constraint(
        "kv-cache-dtype", 1, GB10, ("kv_cache_dtype",),
        lambda e: e.settings.kv_cache_dtype != "fp8",
        rule="set KV_CACHE_DTYPE to anything but fp8",
        evidence="the sparse attention kernel of SM12x has no bf16 path and nvfp4 is not available: the engine does not start",
        hint="KV_CACHE_DTYPE=fp8",
    ),
    Constraint(
        "quantization", 2, GB10, ("quantization",),
        lambda e: e.settings.quantization != "exl3",
        rule="set QUANTIZATION to anything but exl3",
        evidence="the weights are EXL3; no other loader reads them",
        hint="QUANTIZATION=exl3",
    ),
    Constraint(
        "marlin", 2, GB10, ("extra_args", "glm53_extra_env"),
        lambda e: "marlin" in f"{e.settings.extra_args} {e.settings.glm53_extra_env}".lower() and "marlin is named there",
        rule="ask for the marlin MoE backend",
        evidence="the experts are EXL3 tensors, which that backend cannot read",
        hint="leave --moe-backend out of EXTRA_ARGS",
    ),
    Constraint(
        "image", 2, GB10, ("image",),
        lambda e: any(name in e.settings.image.lower() for name in _BAD_IMAGES),
        rule="use an amd64 or SM120 image, or glm53-flash-sm121:v8",
        evidence="a Spark is arm64 with SM121; stock images end with 'pe_dim must be 64 for fp8_ds_mla' at the first forward pass",
        hint="the image that this repository builds",
    ),
    Constraint(
        "attention-backend", 3, GB10, ("extra_args", "glm53_extra_env"), _attention_pin,
        rule="pin an attention backend, least of all the drafter's",
        evidence="with TRITON_ATTN for the drafter structured output fell from 83 to about 29 tok/s, later draft positions being refused",
        hint="take the backend out; vLLM chooses the sparse MLA kernel of SM12x by itself",
    ),
    Constraint(
        "batched-tokens", 4, GB10, ("max_num_batched_tokens",),
        lambda e: e.settings.max_num_batched_tokens >= 8192,
        rule="set MAX_NUM_BATCHED_TOKENS to 8192 or more",
        evidence="8192 asks the indexer's top-k for more shared memory than SM12x has: a crash at 300k tokens of context",
        hint="MAX_NUM_BATCHED_TOKENS=7168, or 2048 with many short requests",
    ),
    Constraint(
        "image-tokens", 4, GB10, ("mm_image_tokens", "max_num_batched_tokens"),
        lambda e: not e.settings.language_model_only and image_tokens(e.settings) > e.settings.max_num_batched_tokens
        and f"the largest image has {image_tokens(e.settings)} tokens and must fit in one step",
        rule="let MM_IMAGE_TOKENS exceed MAX_NUM_BATCHED_TOKENS (empty means the checkpoint's 8000)",
        evidence="an image is encoded in one step; 8000-token images also ended a worker out of memory",
        hint="MM_IMAGE_TOKENS=2048 (1080p has 2040)",
    ),
    Constraint(
        "vision-profiling", 5, GB10, ("skip_mm_profiling", "language_model_only"),
        lambda e: not e.settings.language_model_only and e.settings.skip_mm_profiling == 0,
        rule="profile images at start (SKIP_MM_PROFILING=0) with the vision tower loaded",
        evidence="profiling the largest images runs the unified memory out before the server is ready",
        hint="SKIP_MM_PROFILING=1, or LANGUAGE_MODEL_ONLY=1",
    ),
    Constraint(
        "vision-limits", 5, VLLM, ("limit_mm",),
        lambda e: not e.settings.language_model_only and images_per_request(e.settings) is None,
        rule="write LIMIT_MM other than as JSON with whole numbers",
        evidence="unquoted in a file that a shell reads, the JSON loses its quotes, and every rank fails at its command line",
        hint="""LIMIT_MM='{"image":48,"video":1}'""",
    ),
    Constraint(
        "vision-budget", 5, GB10, ("limit_mm", "mm_image_tokens"),
        lambda e: not e.settings.language_model_only and vision_tokens(e.settings) > VISION_BUDGET_TOKENS
        and f"one request may bring {vision_tokens(e.settings)} image tokens; the budget is {VISION_BUDGET_TOKENS}",
        rule="allow more than 98304 image tokens a request (images in LIMIT_MM x MM_IMAGE_TOKENS; no limit counts as 999 images)",
        evidence="nothing is reserved for images; 33 frames of 7200 tokens, 236k in all, ended an engine (GLM PR 183)",
        hint="fewer images in LIMIT_MM, or a smaller MM_IMAGE_TOKENS; their product may be 98304",
    ),
    Constraint(
        "instanttensor-kv", 6, PAIR, ("load_format", "max_model_len", "gpu_mem_util", "kv_cache_memory_bytes"),
        lambda e: "instanttensor" in (e.settings.load_format or "") and e.settings.max_model_len >= 850_000
        and e.settings.gpu_mem_util <= 0.85 and reservation(e)[0] is None,
        rule="combine LOAD_FORMAT=instanttensor, 850k or more and GPU_MEM_UTIL up to 0.85 without KV_CACHE_MEMORY_BYTES",
        evidence="that loader costs 4.4-5.6 GiB of KV: 12.4 GiB were left of the 13.46-13.56 needed, no boot (GLM 204)",
        hint=f"KV_CACHE_MEMORY_BYTES={KV_11_GIB} with compact draft KV, {KV_14_GIB} without (3 boots of 3)",
    ),
    Constraint(
        "kv-reservation-plain", 7, PAIR, ("kv_cache_memory_bytes", "extra_args", "glm53_draft_kv_compact", "spec_method", "max_model_len"),
        lambda e: not compact_draft_kv(e.settings) and e.settings.max_model_len >= 850_000
        and (reservation(e)[0] or KV_14_GIB) < KV_14_GIB and "the draft KV is not compact, and 14 GiB are needed",
        rule="reserve less than 14 GiB of KV for 850k without compact draft KV (also with SPEC_METHOD mtp or none)",
        evidence="one request of 850k needs 13.56 GiB then; 11 GiB are enough only with compact draft KV (121 block ids, not 180)",
        hint=f"KV_CACHE_MEMORY_BYTES={KV_14_GIB}, a smaller MAX_MODEL_LEN, or dflash with GLM53_DRAFT_KV_COMPACT=1",
    ),
    Constraint(
        "kv-reservation-request", 7, GB10, ("kv_cache_memory_bytes", "extra_args", "max_model_len"), _reservation_is_short,
        rule="reserve less KV than one request of MAX_MODEL_LEN needs (7.1 GiB per million tokens, 7.4 GiB on top for plain draft KV)",
        evidence="two nodes: 10.98 GiB at 500k, 13.56 at 850k, 14.52 at 1M; the engine refuses only after minutes of loading",
        hint="raise KV_CACHE_MEMORY_BYTES, leave it empty, or lower MAX_MODEL_LEN",
    ),
    Constraint(
        "kv-reservation-number", 7, VLLM, ("extra_args",),
        lambda e: (given := extra_reservation(e.settings)) is not None and not is_whole_bytes(given)
        and "the value of --kv-cache-memory-bytes there is not a plain number of bytes",
        rule="give --kv-cache-memory-bytes in EXTRA_ARGS as anything but plain bytes",
        evidence="the rules about the KV reservation could not see it",
        hint="KV_CACHE_MEMORY_BYTES=<bytes>, and take the flag out of EXTRA_ARGS",
    ),
    Constraint(
        "kv-reservation-inherited", 8, THREE_OR_FOUR, ("kv_cache_memory_bytes", "extra_args"), _inherited_reservation,
        rule="carry the two-node KV reservation (11 or 14 GiB) in .env over to three or four nodes",
        evidence="left in the shared file it follows to more nodes: the recipe strips it there; its author's three nodes reserve 40 GiB",
        hint="remove it from .env (GPU_MEM_UTIL then decides), or give this kit's own figure",
    ),
    Constraint(
        "grouped-prefill-million", 9, PAIR, ("exl3_fat_grouped", "max_model_len", "gpu_mem_util"),
        lambda e: e.settings.exl3_fat_grouped == 1 and e.settings.max_model_len >= 1_000_000 and e.settings.gpu_mem_util <= 0.87,
        rule="combine EXL3_FAT_GROUPED=1, a million tokens and GPU_MEM_UTIL up to 0.87 on two nodes",
        evidence="grouped prefill takes 560 MiB from the KV; the recipe went from 1M to 900k, then 850k, when it became the default",
        hint="MAX_MODEL_LEN=850000, or EXL3_FAT_GROUPED=0",
    ),
)  # fmt: skip
