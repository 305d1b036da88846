"""The vLLM engine: settings and a rank as `vllm serve` words, environment, and the `docker run` around them.

Follows the public recipe's command lines (two, three, four nodes) as far as they are still right for vLLM 0.32. Deviations:

- no patch scripts and no generated inner script: the container's entry point is vllm itself, the plugin comes with the image;
- the pinned snapshot's folder is served, never refs/main;
- `disable_eagle_block_drop` in the dflash config: 0.32 counts dflash as EAGLE and else drops a prefix block in every group;
- without speculation the CUDA graph sizes are vLLM's own: the recipe kept those of mtp for it; with mtp every n (k + 1) is listed;
- the API key travels as a variable by name on rank 0 only: the recipe's three- and four-node scripts put its value in argv;
- three ranks: the drafter is served as it is with its own TP 1, where the recipe mounts a copy whose config is padded to 36/9 heads,
  and the padded-head files of the model must be in the image (TP3_OVERLAY); neither is proven here;
- `--init` and our labels on the container; `--stop-timeout 60` stays (a headless rank needs 12 s).
"""

from __future__ import annotations

import json
import shlex
from pathlib import PurePosixPath
from typing import Any

from cluster.fields import Settings
from cluster.images.identity import tag_of
from cluster.ranks import Rank

_HF_IN_CONTAINER = "/root/.cache/huggingface"
NCCL_LIBRARY = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"  # in the image: what torch loads
_MTP_SIZES = (1, 2, 3, 4, 6, 8, 12)
_DFLASH_SIZES = (1, 2, 4, 8, 16, 24, 32)


def snapshot(repo: str, revision: str, hub: str) -> str:
    """The folder of exactly this revision in a Hugging Face cache at `hub`; an absolute path is taken as it is."""
    if repo.startswith("/"):
        return repo
    return f"{hub}/hub/models--{repo.replace('/', '--')}/snapshots/{revision}"


def _hub(rank: Rank) -> str:
    return _HF_IN_CONTAINER if rank.settings.runtime == "docker" else rank.node.hf_home


def serve(rank: Rank) -> tuple[str, ...]:
    """The words after `vllm`. Ranks differ only in --node-rank, --headless and, where nodes do, the model's folder."""
    s = rank.settings
    words: list[str] = ["serve", snapshot(s.model, s.model_revision, _hub(rank))]
    for group in (_identity(rank), _parallel(rank), _sizes(s), _vision(s), _speculation(rank), _switches(s)):
        words += [word for name, value in group.items() for word in _flag(name, value)]
    if rank.number:
        words.append("--headless")
    return (*words, *shlex.split(s.extra_args or ""))


def _flag(name: str, value: Any) -> list[str]:
    """--name value; nothing for None or False, the bare flag for True, one word each for a list, compact JSON for a dict."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)]


def _identity(rank: Rank) -> dict[str, Any]:
    s = rank.settings
    return {"served-model-name": s.served_model_name, "host": s.host, "port": s.port}


def _parallel(rank: Rank) -> dict[str, Any]:
    s = rank.settings
    heads = s.tp3_head_override
    shape = {"num_attention_heads": heads, "num_key_value_heads": heads, "linear_num_heads": heads}
    return {
        "tensor-parallel-size": rank.size,
        "nnodes": rank.size,
        "node-rank": rank.number,
        "master-addr": s.node("head").ip,
        "master-port": s.master_port,
        "distributed-executor-backend": "mp",
        "hf-overrides": {**shape, "text_config": shape} if heads else None,
        "enable-expert-parallel": bool(s.enable_expert_parallel),
    }


def _sizes(s: Settings) -> dict[str, Any]:
    return {
        "quantization": s.quantization,
        "max-model-len": s.max_model_len,
        "gpu-memory-utilization": s.gpu_mem_util,
        "kv-cache-memory-bytes": s.kv_cache_memory_bytes,
        "max-num-seqs": s.max_num_seqs,
        "max-num-batched-tokens": s.max_num_batched_tokens,
        "long-prefill-token-threshold": s.long_prefill_token_threshold,
        "kv-cache-dtype": s.kv_cache_dtype,
        "load-format": s.load_format,
        "prefix-match-unit": s.prefix_match_unit,
    }


def _vision(s: Settings) -> dict[str, Any]:
    if s.language_model_only:
        return {"language-model-only": True}
    return {
        "limit-mm-per-prompt": s.limit_mm,
        "mm-processor-kwargs": {"max_image_tokens": s.mm_image_tokens} if s.mm_image_tokens else None,
        "media-io-kwargs": {"video": {"num_frames": s.video_num_frames}} if s.video_num_frames else None,
        "mm-processor-cache-gb": f"{s.mm_processor_cache_gb:g}",
        "mm-encoder-tp-mode": s.mm_encoder_tp_mode,
        "skip-mm-profiling": bool(s.skip_mm_profiling),
    }


def _speculation(rank: Rank) -> dict[str, Any]:
    s = rank.settings
    dflash = {
        "method": "dflash",
        "model": snapshot(s.dflash_model, s.dflash_revision, _hub(rank)),
        "num_speculative_tokens": s.dflash_tokens,
        "kv_cache_dtype": "auto",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "standard",
        "disable_eagle_block_drop": True,
        **({"draft_tensor_parallel_size": s.dflash_draft_tp} if s.dflash_draft_tp else {}),
    }
    configs = {"dflash": dflash, "mtp": {"method": "mtp", "num_speculative_tokens": s.mtp_tokens}}
    return {"speculative-config": configs.get(s.spec_method), "cudagraph-capture-sizes": graph_sizes(s)}


def graph_sizes(s: Settings) -> list[str] | None:
    """CUDA graph batch sizes: a few small ones, and n (k + 1) for every n, as k + 1 tokens of a request are verified at once."""
    if s.cudagraph_sizes:
        return s.cudagraph_sizes.split()
    if s.enforce_eager or s.spec_method not in ("dflash", "mtp"):
        return None
    if s.spec_method == "mtp":
        return [str(size) for size in sorted({*_MTP_SIZES, *(n * (s.mtp_tokens + 1) for n in range(1, s.max_num_seqs + 1))})]
    lengths = {s.dflash_tokens}
    if s.glm53_adaptive_k not in (None, "off"):
        lengths |= {int(k) for k in (s.glm53_adaptive_k_set or "2,4,7").split(",")}
    exact = {n * (k + 1) for k in lengths for n in range(1, s.max_num_seqs + 1)}
    return [str(size) for size in sorted({*_DFLASH_SIZES, *exact})]


def _switches(s: Settings) -> dict[str, Any]:
    effort = s.glm53_default_reasoning_effort
    return {
        "tool-call-parser": s.tool_call_parser,
        "enable-auto-tool-choice": bool(s.tool_call_parser),
        "reasoning-parser": s.reasoning_parser,
        "chat-template": s.chat_template,
        "default-chat-template-kwargs": {"reasoning_effort": effort} if effort else None,
        "enable-prefix-caching": True,
        "enable-prompt-tokens-details": True,
        "no-enable-flashinfer-autotune": True,
        "enforce-eager": bool(s.enforce_eager),
    }


def environment(rank: Rank) -> dict[str, str]:
    """Variables of a rank. None of them is empty: an empty NCCL_IB_GID_INDEX is read as 0. The API key is not among them."""
    found = {**_common(rank.settings), **_fabric(rank), **_passed_on(rank.settings)}
    if rank.settings.use_host_nccl:
        found |= {"NCCL_SWITCHLESS_RING_ONLY": "1", "NCCL_ALGO": "Ring", "NCCL_SKIP_TREE_CONNECT": "1", "NCCL_P2P_LEVEL": "SYS"}
    extra = (word.partition("=") for word in shlex.split(rank.settings.glm53_extra_env or ""))
    found |= {name: value.replace("{rank}", str(rank.number)) for name, _, value in extra}
    return {name: value for name, value in found.items() if value != ""}


def _common(s: Settings) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(s.vllm_execute_model_timeout_seconds),
        "VLLM_ENGINE_READY_TIMEOUT_S": f"{s.ready_timeout:g}",
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": str(s.cg_estimate),
        "PYTORCH_CUDA_ALLOC_CONF": s.pytorch_cuda_alloc_conf or "",
        "TORCH_CUDA_ARCH_LIST": "12.1a",
        "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
    }


def _fabric(rank: Rank) -> dict[str, str]:
    s, node = rank.settings, rank.node
    optional = {
        "VLLM_HOST_IP": node.ip,
        "NCCL_SOCKET_IFNAME": node.cx7_if,
        "GLOO_SOCKET_IFNAME": node.cx7_if,
        "NCCL_IB_HCA": node.cx7_ib,
        "NCCL_IB_GID_INDEX": s.nccl_ib_gid_index if node.gid is None else node.gid,
        "NCCL_MIN_NCHANNELS": s.nccl_nchannels,
        "NCCL_MAX_NCHANNELS": s.nccl_nchannels,
        "NCCL_IB_SUBNET_AWARE_ROUTING": s.nccl_ib_subnet_aware_routing,
        "NCCL_IB_SUBNET_PREFIX_LEN": s.nccl_ib_subnet_prefix_len,
        "NCCL_P2P_DISABLE": s.nccl_p2p_disable,
        "NCCL_SHM_DISABLE": s.nccl_shm_disable,
        "NCCL_BUFFSIZE": s.nccl_buffsize,
        "NCCL_LL128_BUFFSIZE": s.nccl_ll128_buffsize,
        "NCCL_PROTO": s.nccl_proto,
    }
    fixed = {
        "NCCL_NET": "IB",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_CROSS_NIC": str(s.nccl_cross_nic),
        "NCCL_DEBUG": s.nccl_debug,
    }
    return {**fixed, **{name: str(value) for name, value in optional.items() if value is not None}}


_PASSED_ON = (
    "glm53_draft_kv_compact", "glm53_dense_fp8", "glm53_kda_bf16_large_m", "glm53_dense_exl3", "glm53_adaptive_k", "glm53_adaptive_k_set",
    "glm53_kv_offload", "exl3_fat_grouped", "exl3_temp_rows_fused",
)  # fmt: skip


def _passed_on(s: Settings) -> dict[str, str]:
    named = {name.upper(): getattr(s, name) for name in _PASSED_ON}
    named["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = s.glm53_apc_retention_interval
    named["VLLM_PREFIX_CACHE_RETENTION_INTERVAL_SWA"] = s.glm53_apc_retention_interval_swa
    named["ABLIT"] = s.ablit or None
    named["GLM53_EXPOSE_CACHE_RESET"] = s.glm53_expose_cache_reset or None
    if s.quantization == "exl3" and s.glm53_draft_kv_compact is None:
        named["GLM53_DRAFT_KV_COMPACT"] = int(s.spec_method == "dflash")  # block ids per longest request 180 -> 121
    return {name: str(value) for name, value in named.items() if value is not None}


_DOCKER = (
    "--init", "--pull", "never", "--gpus", "all", "--network", "host", "--ipc", "host", "--shm-size", "32g",
    "--stop-timeout", "60", "--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
)  # fmt: skip


def docker_run(rank: Rank) -> tuple[str, ...]:
    """The `docker run` of a rank, without labels (the runtime adds those). `~` in mounts is the node's own home."""
    s = rank.settings
    words = ["docker", "run", "--name", rank.name, "--detach", *attached(rank)]
    if rank.number == 0 and s.vllm_api_key:
        words += ["--env", "VLLM_API_KEY"]
    return (*words, "--entrypoint", s.image_entrypoint, tag_of(s.image), *serve(rank))


def attached(rank: Rank) -> tuple[str, ...]:
    """Flags, mounts and variables of every container of the rank; no secret is among them."""
    mounts = [word for mount in _mounts(rank) for word in ("--volume", mount)]
    return (*_DOCKER, *mounts, *(word for name, value in container_environment(rank).items() for word in ("--env", f"{name}={value}")))


def container_environment(rank: Rank) -> dict[str, str]:
    """environment() and where the mounted caches are in the container."""
    caches = {
        "HF_HOME": _HF_IN_CONTAINER,
        "VLLM_CACHE_ROOT": "/root/.cache/vllm",
        "TRITON_CACHE_DIR": "/root/.triton/cache",
        "TILELANG_CACHE_DIR": "/root/.tilelang/cache",
    }
    return {**caches, **environment(rank)}


def model_folders(rank: Rank) -> tuple[str, ...]:
    """The folders on the node that hold the model and, with dflash, the drafter."""
    s, hub = rank.settings, rank.node.hf_home
    drafter = (snapshot(s.dflash_model, s.dflash_revision, hub),) if s.spec_method == "dflash" else ()
    return (snapshot(s.model, s.model_revision, hub), *drafter)


def cache_folders(rank: Rank) -> tuple[str, ...]:
    """The compile caches on the node, which must exist (and belong to the login) before they are mounted."""
    return tuple(f"{PurePosixPath(rank.node.cache_root) / name}" for name in ("vllm", "triton", "tilelang", "nv"))


def _mounts(rank: Rank) -> list[str]:
    s, node = rank.settings, rank.node
    targets = ("/root/.cache/vllm", "/root/.triton/cache", "/root/.tilelang/cache", "/root/.nv/ComputeCache")
    mounts = [f"{node.hf_home}:{_HF_IN_CONTAINER}" + ("" if rank.number == 0 else ":ro")]
    mounts += [f"{source}:{target}" for source, target in zip(cache_folders(rank), targets, strict=True)]
    if s.model.startswith("/"):
        mounts.append(f"{s.model}:{s.model}:ro")
    if s.use_host_nccl:
        # The patched library must replace the one that torch loads; preloading a second one trips DeepEP's duplicate check.
        mounts.append(f"{s.nccl_host_dir}/{s.nccl_so_name}:{NCCL_LIBRARY}:ro")
    return [*mounts, *(s.extra_mounts or "").split()]
