"""Constraints of graphs, kernels and the three-rank shape: groups 10 to 15. See constraint_model.Constraint for the fields."""

from __future__ import annotations

import shlex

from cluster.constraint_model import (
    GB10,
    LLAMA,
    NOT_PAIR,
    NOT_TRIPLE,
    OVERLAY_TEMP_ROWS,
    TRIPLE,
    VLLM,
    Constraint,
    adaptive_words,
    draft_lengths,
    draft_tokens,
    fp8_groups,
    is_whole,
)
from cluster.engines.vllm import graph_sizes
from cluster.settings import Effective


def _temp_rows(e: Effective) -> str:
    rows = e.settings.exl3_temp_rows_fused or OVERLAY_TEMP_ROWS
    need = e.settings.max_num_seqs * (max(draft_lengths(e.settings)) + 1)
    return "" if rows >= need else f"a decode step has up to {need} rows, the fused launch takes {rows}"


def _graph_sizes(e: Effective) -> str:
    """dflash needs every n (k + 1); mtp k + 1 (the recipe's own list has 3 for two draft tokens, and pads the rest)."""
    s = e.settings
    given = s.cudagraph_sizes
    words = (given or "").split()
    if any(not is_whole(word) or int(word) == 0 for word in words):
        return "the sizes must be whole numbers from 1, separated by blanks"
    if s.enforce_eager or s.spec_method not in ("dflash", "mtp"):
        return ""
    if s.spec_method == "dflash":
        need = {n * (k + 1) for k in draft_lengths(s) for n in range(1, s.max_num_seqs + 1)} if given else set()
    else:
        words, need = graph_sizes(s) or [], {draft_tokens(s) + 1}
    missing = sorted(need - {int(word) for word in words})
    return f"missing: {' '.join(map(str, missing[:8]))}{' ...' if missing[8:] else ''}" if missing else ""


def _adaptive_set(e: Effective) -> str:
    s = e.settings
    if s.glm53_adaptive_k not in (None, "off", "on", "ema", "1"):
        return "GLM53_ADAPTIVE_K must be off or ema"
    bad = [word for word in adaptive_words(s) if not is_whole(word) or not 1 <= int(word) <= 7]
    return f"not a draft length from 1 to 7: {', '.join(bad)}" if bad else ""


def _rank_dependent(e: Effective) -> str:
    words = shlex.split(e.settings.glm53_extra_env or "")
    names = [word.partition("=")[0] for word in words if "{rank}" in word and word.startswith(("GLM53_", "EXL3_", "ABLIT"))]
    return f"differs between ranks: {', '.join(names)}" if names else ""


KERNELS: tuple[Constraint, ...] = (
    Constraint(
        "temp-rows", 10, GB10, ("exl3_temp_rows_fused", "max_num_seqs", "spec_method"), _temp_rows,
        rule="let MAX_NUM_SEQS x (draft tokens + 1) exceed EXL3_TEMP_ROWS_FUSED (unset: 512)",
        evidence="a decode step above it is no longer one launch that a CUDA graph can hold",
        hint="raise EXL3_TEMP_ROWS_FUSED, or lower MAX_NUM_SEQS or the draft tokens",
    ),
    Constraint(
        "graph-sizes", 10, GB10, ("cudagraph_sizes", "spec_method", "max_num_seqs"), _graph_sizes,
        rule="give CUDAGRAPH_SIZES without every n x (draft tokens + 1) up to MAX_NUM_SEQS (mtp: without draft tokens + 1)",
        evidence="a verify step without its own graph is padded or runs eagerly, about three times slower",
        hint="leave CUDAGRAPH_SIZES empty with dflash; with mtp list the missing sizes",
    ),
    Constraint(
        "adaptive-lengths", 10, GB10, ("glm53_adaptive_k", "glm53_adaptive_k_set"), _adaptive_set,
        rule="use adaptive draft lengths that are not numbers from 1 to 7",
        evidence="each length needs its own graphs, and the drafter's trained block is 8",
        hint="GLM53_ADAPTIVE_K=ema with GLM53_ADAPTIVE_K_SET=2,4,7 (four nodes: 1,2,3), or off",
    ),
    Constraint(
        "compact-needs-dflash", 11, GB10, ("glm53_draft_kv_compact", "spec_method"),
        lambda e: e.settings.glm53_draft_kv_compact == 1 and e.settings.spec_method != "dflash",
        rule="set GLM53_DRAFT_KV_COMPACT=1 without SPEC_METHOD=dflash",
        evidence="there is no drafter whose KV could be compact; the recipe refuses it before it stops anything",
        hint="GLM53_DRAFT_KV_COMPACT=0, or SPEC_METHOD=dflash",
    ),
    Constraint(
        "retention-needs-dflash", 11, GB10, ("glm53_apc_retention_interval_swa", "spec_method"),
        lambda e: e.settings.glm53_apc_retention_interval_swa is not None and e.settings.spec_method != "dflash",
        rule="set GLM53_APC_RETENTION_INTERVAL_SWA without SPEC_METHOD=dflash",
        evidence="it is the retention of the drafter's sliding window; the recipe refuses it",
        hint="leave GLM53_APC_RETENTION_INTERVAL_SWA empty, or SPEC_METHOD=dflash",
    ),
    Constraint(
        "dense-exl3-fp8", 12, GB10, ("glm53_dense_exl3", "glm53_dense_fp8"),
        lambda e: e.settings.glm53_dense_exl3 == 1 and bool(fp8_groups(e.settings)),
        rule="combine GLM53_DENSE_EXL3=1 with GLM53_DENSE_FP8",
        evidence="both replace the same dense layers; the recipe refuses it",
        hint="GLM53_DENSE_FP8=off, or GLM53_DENSE_EXL3=0",
    ),
    Constraint(
        "dense-exl3-nodes", 12, NOT_PAIR, ("glm53_dense_exl3", "glm53_model_preset"),
        lambda e: e.settings.glm53_dense_exl3 == 1 or e.settings.glm53_model_preset == "dense-h3",
        rule="use dense EXL3 (GLM53_DENSE_EXL3=1, preset dense-h3) on anything but two nodes",
        evidence="qualified for two ranks only; the recipe's three- and four-node launchers refuse it",
        hint="GLM53_DENSE_EXL3=0 and no preset, or KIT=spark2",
    ),
    Constraint(
        "dense-exl3-ablit", 12, GB10, ("glm53_dense_exl3", "glm53_model_preset", "ablit"),
        lambda e: e.settings.ablit == 1 and (e.settings.glm53_dense_exl3 == 1 or e.settings.glm53_model_preset == "dense-h3"),
        rule="edit at load (ABLIT=1) a model whose o_proj are EXL3",
        evidence="the edit needs plain weights; a trellis-coded o_proj cannot be projected; the recipe refuses it",
        hint="ABLIT=0, or GLM53_DENSE_EXL3=0 with the plain pack",
    ),
    Constraint(
        "dense-pack-flag", 12, GB10, ("glm53_model_preset", "glm53_dense_exl3"),
        lambda e: e.settings.glm53_model_preset == "dense-h3" and e.settings.glm53_dense_exl3 != 1,
        rule="serve the dense-h3 pack without GLM53_DENSE_EXL3=1",
        evidence="its dense layers are EXL3; the loader refuses the pack when the switch is off",
        hint="GLM53_DENSE_EXL3=1, or no preset",
    ),
    Constraint(
        "preset-edited-twice", 12, GB10, ("glm53_model_preset", "ablit"),
        lambda e: e.settings.ablit == 1 and e.settings.glm53_model_preset == "abliterated",
        rule="edit at load (ABLIT=1) the pack that is already edited",
        evidence="the projection would be applied twice; the recipe forces ABLIT=0 with this preset",
        hint="ABLIT=0, or no preset",
    ),
    Constraint(
        "ablit-local", 12, LLAMA, ("ablit",),
        lambda e: e.settings.ablit == 1,
        rule="edit at load (ABLIT=1) with the local kit",
        evidence="the edit is made by the vLLM plugin; llama.cpp would serve the stock model, and no error would show it",
        hint="ABLIT=0, or a kit with vLLM",
    ),
    Constraint(
        "preset-not-built", 21, GB10, ("glm53_model_preset",),
        lambda e: e.settings.glm53_model_preset is not None,
        rule="name a GLM53_MODEL_PRESET",
        evidence="this launcher neither builds nor fetches the prepared pairs, and the recipe refuses a preset that is not built",
        hint="set MODEL and MODEL_REVISION to the pack you have (kits/checkpoints.toml lists the public ones)",
    ),
    Constraint(
        "dense-fp8-words", 13, GB10, ("glm53_dense_fp8",),
        lambda e: (e.settings.glm53_dense_fp8 or "off") not in ("off", "all")
        and not {w.strip() for w in (e.settings.glm53_dense_fp8 or "").split(",")} <= {"shared", "dense", "kda", "mla"},
        rule="set GLM53_DENSE_FP8 to other than off, all, or of shared,dense,kda,mla",
        evidence="the overlay knows no other groups",
        hint="GLM53_DENSE_FP8=all, or for example dense,kda",
    ),
    Constraint(
        "kda-needs-fp8", 13, GB10, ("glm53_kda_bf16_large_m", "glm53_dense_fp8"),
        lambda e: e.settings.glm53_kda_bf16_large_m == 1 and "kda" not in fp8_groups(e.settings),
        rule="set GLM53_KDA_BF16_LARGE_M=1 without kda in GLM53_DENSE_FP8",
        evidence="there is no FP8 KDA to go beside; the recipe's launcher lets it through and only the overlay notices",
        hint="GLM53_DENSE_FP8=all, or GLM53_KDA_BF16_LARGE_M=0",
    ),
    Constraint(
        "rank-dependent", 14, VLLM, ("glm53_extra_env",), _rank_dependent,
        rule="give GLM53_*, EXL3_* or ABLIT* variables a value that differs between ranks ({rank})",
        evidence="ranks with other kernels or draft lengths build other CUDA graphs and hang in NCCL right after the capture",
        hint="the same value for every rank",
    ),
    Constraint(
        "tp3-drafter", 15, TRIPLE, ("dflash_draft_tp", "spec_method"),
        lambda e: e.settings.spec_method == "dflash" and e.settings.dflash_draft_tp != 1,
        rule="let the drafter run on more than one of three ranks (empty means all)",
        evidence="its 32 attention and 8 KV heads do not split over three",
        hint="DFLASH_DRAFT_TP=1",
    ),
    Constraint(
        "drafter-ranks", 15, NOT_TRIPLE, ("dflash_draft_tp", "spec_method"),
        lambda e: e.settings.spec_method == "dflash" and e.settings.dflash_draft_tp not in (None, 1, len(e.kit.nodes))
        and f"it may be 1 or {len(e.kit.nodes)}",
        rule="set DFLASH_DRAFT_TP to anything but 1 or the number of nodes",
        evidence="vLLM 0.32 refuses every other value when it builds the drafter's configuration",
        hint="leave DFLASH_DRAFT_TP empty, or 1",
    ),
    Constraint(
        "tp3-heads", 15, TRIPLE, ("tp3_head_override",),
        lambda e: e.settings.tp3_head_override != 66,
        rule="run three ranks with TP3_HEAD_OVERRIDE other than 66",
        evidence="64 heads do not split over three; 66 is 3 x 22; with 96 one rank has padding only",
        hint="TP3_HEAD_OVERRIDE=66",
    ),
    Constraint(
        "tp3-heads-elsewhere", 15, NOT_TRIPLE, ("tp3_head_override",),
        lambda e: e.settings.tp3_head_override is not None,
        rule="set TP3_HEAD_OVERRIDE on anything but three nodes",
        evidence="64 heads split over two and four as they are; padded heads need the three-rank files in the image",
        hint="leave TP3_HEAD_OVERRIDE empty",
    ),
    Constraint(
        "tp3-experts", 15, TRIPLE, ("enable_expert_parallel",),
        lambda e: e.settings.enable_expert_parallel == 0,
        rule="run three ranks without ENABLE_EXPERT_PARALLEL=1",
        evidence="an expert's width of 2048 does not split over three; 288 experts do, 96 a rank",
        hint="ENABLE_EXPERT_PARALLEL=1",
    ),
    Constraint(
        "tp3-vision", 15, TRIPLE, ("mm_encoder_tp_mode", "language_model_only"),
        lambda e: not e.settings.language_model_only and e.settings.mm_encoder_tp_mode != "data",
        rule="run three ranks with vision and MM_ENCODER_TP_MODE other than data",
        evidence="the vision encoder's 16 heads do not split over three",
        hint="MM_ENCODER_TP_MODE=data, or LANGUAGE_MODEL_ONLY=1",
    ),
    Constraint(
        "tp3-overlay", 15, TRIPLE, ("tp3_overlay",),
        lambda e: not e.settings.tp3_overlay,
        rule="run three ranks without TP3_OVERLAY",
        evidence="stock vLLM cannot load 64 heads as 66: the padded-head files replace four of its modules",
        hint="TP3_OVERLAY=/opt/glm53/tp3",
    ),
)  # fmt: skip
