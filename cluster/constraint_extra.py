"""Constraints of what is passed through: EXTRA_ARGS to `vllm serve`, GLM53_EXTRA_ENV to every rank. Messages show no values of theirs."""

from __future__ import annotations

import re
import shlex

from cluster.constraint_model import VLLM, Constraint, abbreviates, flags
from cluster.settings import NAMES, Effective

# Flag -> the setting to use instead; "" for what follows from the kit.
OWNED_FLAGS = {
    **dict.fromkeys(("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes", "node-rank", "headless"), ""),
    **dict.fromkeys(("distributed-executor-backend", "config", "revision", "kernel-config", "compilation-config"), ""),
    "master-addr": "HEAD_IP", "hf-overrides": "TP3_HEAD_OVERRIDE", "api-key": "VLLM_API_KEY", "speculative-config": "SPEC_METHOD",
    "gpu-memory-utilization": "GPU_MEM_UTIL", "cudagraph-capture-sizes": "CUDAGRAPH_SIZES", "limit-mm-per-prompt": "LIMIT_MM",
    "mm-processor-kwargs": "MM_IMAGE_TOKENS", "media-io-kwargs": "VIDEO_NUM_FRAMES",
    "default-chat-template-kwargs": "GLM53_DEFAULT_REASONING_EFFORT",
    **{name: name.upper().replace("-", "_") for name in (
        "model", "served-model-name", "host", "port", "master-port", "enable-expert-parallel", "quantization", "load-format",
        "max-model-len", "max-num-seqs", "max-num-batched-tokens", "long-prefill-token-threshold", "kv-cache-dtype", "prefix-match-unit",
        "language-model-only", "skip-mm-profiling", "mm-processor-cache-gb", "mm-encoder-tp-mode", "enforce-eager", "chat-template",
        "tool-call-parser", "reasoning-parser",
    )},
}  # fmt: skip

# Variables that the launcher sets itself, beside those that are settings.
_VARIABLES = """
    NCCL_NET NCCL_IB_DISABLE NCCL_IB_ROCE_VERSION_NUM NCCL_NET_PLUGIN NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE NCCL_IB_MERGE_NICS
    NCCL_IGNORE_CPU_AFFINITY NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_IB_HCA NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_ALGO
    NCCL_SKIP_TREE_CONNECT NCCL_P2P_LEVEL VLLM_HOST_IP NODE_RANK HF_HOME HF_HUB_OFFLINE HF_TOKEN TRANSFORMERS_OFFLINE
    VLLM_CACHE_ROOT TRITON_CACHE_DIR TILELANG_CACHE_DIR VLLM_ENGINE_READY_TIMEOUT_S VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS
    VLLM_NO_USAGE_STATS DO_NOT_TRACK TORCH_CUDA_ARCH_LIST FLASHINFER_CUDA_ARCH_LIST FLASHINFER_DISABLE_VERSION_CHECK
    VLLM_PREFIX_CACHE_RETENTION_INTERVAL VLLM_PREFIX_CACHE_RETENTION_INTERVAL_SWA LD_PRELOAD PYTORCH_ALLOC_CONF
"""
OWNED_VARIABLES = frozenset(NAMES) | frozenset(_VARIABLES.split())


def _owned_flags(e: Effective) -> str:
    said = []
    for given in flags(e.settings):
        owner = next((name for name in OWNED_FLAGS if abbreviates(given, f"--{name}")), None)
        if owner is not None:
            said.append(f"{given} ({'use ' + OWNED_FLAGS[owner] if OWNED_FLAGS[owner] else 'set by the launcher'})")
    return ", ".join(said)


def _extra_words(e: Effective) -> str:
    words = shlex.split(e.settings.glm53_extra_env or "")
    bad = [n for n, word in enumerate(words, 1) if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f\x7f]*", word)]
    return f"not NAME=VALUE: word {', '.join(map(str, bad))}" if bad else ""


def _extra_names(e: Effective) -> str:
    names = [word.partition("=")[0] for word in shlex.split(e.settings.glm53_extra_env or "")]
    owned = [f"{name}{' (a setting)' if name in NAMES else ''}" for name in names if name in OWNED_VARIABLES]
    return f"set by the launcher: {', '.join(owned)}" if owned else ""


EXTRA: tuple[Constraint, ...] = (
    Constraint(
        "extra-args-owned", 0, VLLM, ("extra_args",), _owned_flags,
        rule="put flags into EXTRA_ARGS that the launcher sets (--port, --node-rank, --kv-cache-dtype, ...)",
        evidence="they come last and win, on every rank: the other rules could not see them, and ranks could not be told apart",
        hint="the setting named; --kv-cache-memory-bytes is allowed for the sake of existing files",
    ),
    Constraint(
        "extra-env-words", 0, VLLM, ("glm53_extra_env",), _extra_words,
        rule="write GLM53_EXTRA_ENV other than as NAME=VALUE words",
        evidence="the recipe notices a bad word only after it has removed the running containers",
        hint="GLM53_EXTRA_ENV='NAME=VALUE OTHER=VALUE', quoted as in a shell",
    ),
    Constraint(
        "extra-env-owned", 0, VLLM, ("glm53_extra_env",), _extra_names,
        rule="set variables in GLM53_EXTRA_ENV that the launcher sets or that are settings",
        evidence="they would win on every rank, unseen by the other rules; the recipe refuses them too (GLM PR 81)",
        hint="the setting of that name",
    ),
)  # fmt: skip
