"""The settings model: every setting with its type, limits, default and one-line meaning.

Names follow the public recipe's `.env`, so that an existing file keeps working. Settings of one node exist once per role with
the role in front (HEAD_IP, WORKER_IP, WORKER2_IP, WORKER3_IP).
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any, Literal

import pydantic

ROLES = ("head", "worker", "worker2", "worker3")
Switch = Annotated[int, pydantic.Field(ge=0, le=1)]


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A field. `secret`: masked wherever it is shown. `local`: does not shape what runs. `place`: an address, login or path of
    somebody's machine, which does not belong into a receipt.
    """
    notes = {name: limits.pop(name, False) for name in ("secret", "local", "place")}
    return pydantic.Field(default, description=meaning, json_schema_extra=notes, **limits)


class NodeSettings(pydantic.BaseModel):
    """The settings of one node, without the role in front."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    ip: str | None = setting(None, "address on the fast fabric, used for rank traffic and copies", place=True)
    ssh: str | None = setting(
        None, "ssh destination: alias, host, user@host or user@host:port (default: the IP; this machine: no ssh)", place=True
    )
    user: str | None = setting(None, "login on the node (default: the ssh configuration's)", place=True)
    hf_home: str = setting("~/.cache/huggingface", "Hugging Face cache on the node; ~ is the node's own home", place=True)
    cache_root: str = setting(
        "~/.cache/spark-lab", "compile caches on the node (vLLM, Triton, CUDA): persistent, or every boot recompiles", place=True
    )
    cx7_if: str | None = setting(None, "ConnectX-7 network device, for NCCL and Gloo")
    cx7_ib: str | None = setting(None, "RoCE devices for NCCL, separated by commas")
    gid: int | None = setting(None, "RoCE v2 GID index (default: NCCL_IB_GID_INDEX)", ge=0, le=255)
    venv: str | None = setting(None, "process runtime: virtual environment with vLLM on the node", place=True)


class Settings(pydantic.BaseModel):
    """The effective settings of one launch. Sizes in tokens unless named otherwise, times in seconds."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    kit: str = setting("local", "which physical set to use: a name from kits/")

    # serving
    host: str = setting("127.0.0.1", "address the API listens on; 0.0.0.0 opens it to the network (then set VLLM_API_KEY)", place=True)
    port: int = setting(8888, "TCP port of the API on the head", ge=1, le=65535, place=True)
    served_model_name: str = setting("GLM-5.3-Flash-EXL3", "model id that requests name", min_length=1)
    vllm_api_key: str | None = setting(None, "bearer token that /v1 requests must carry; empty: none needed", secret=True)
    max_model_len: int = setting(8192, "longest prompt plus answer of one request, tokens", ge=256, le=1_000_000)
    max_num_seqs: int = setting(4, "requests decoded at the same time", ge=1, le=4096)
    glm53_default_reasoning_effort: Literal["low", "high", "max"] | None = setting(None, "reasoning effort of requests that name none")

    # speculation
    spec_method: Literal["dflash", "mtp", "ngram", "none"] = setting(
        "none", "speculative decoding: dflash, mtp, none; local kit: ngram, none"
    )
    dflash_tokens: int = setting(7, "dflash: tokens drafted per step (trained block 8: at most 7)", ge=1, le=7)
    dflash_draft_tp: int | None = setting(None, "dflash: tensor parallel size of the drafter (default: that of the model)", ge=1, le=4)
    dflash_model: str = setting("incoai/GLM-5.3-Flash-DFlash2", "dflash: drafter repository")
    dflash_revision: str = setting("dc77ff1c99eeb2df044ee3d4f0094eb033fee410", "dflash: drafter commit", pattern=r"^[0-9a-f]{40}$")
    mtp_tokens: int = setting(2, "mtp: tokens drafted per step", ge=1, le=7)
    ngram_tokens: int = setting(7, "ngram: tokens drafted per step", ge=1, le=48)
    ngram_match: int = setting(4, "ngram: how many last tokens must occur earlier for a draft", ge=1, le=32)

    # local engine
    threads: int = setting(1, "local: inference threads; two collapse when the cores are shared", ge=1, le=256)

    # model and image
    model: str = setting("Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold", "weights repository, or an absolute path to a model folder")
    model_revision: str = setting(
        "76c0b5173166d2795dd48860f45d8224817f894c", "weights commit: exactly this snapshot is served", pattern=r"^[0-9a-f]{40}$"
    )
    runtime: Literal["docker", "process"] = setting("docker", "how a rank runs on its node: container, or process in a virtual environment")
    image: str = setting("spark-lab/glm-exl3:0.32", "docker: image of every rank")
    build_base: str | None = setting(None, "docker: base image of invoke build; empty: the Dockerfile's own, by digest", local=True)
    registry: str | None = setting(
        None, "docker: HOST:PORT of a registry that carries the image to the workers; empty: docker save over ssh", local=True, place=True
    )
    image_entrypoint: str = setting("vllm", "docker: the vllm command in the image")
    extra_mounts: str | None = setting(None, "docker: further mounts, SOURCE:TARGET[:ro], separated by blanks", place=True)
    chat_template: str | None = setting(None, "chat template file on every rank; empty: the checkpoint's", place=True)
    tool_call_parser: str | None = setting("glm47", "tool call parser; empty: no tool calls")
    reasoning_parser: str | None = setting("glm45", "reasoning parser; empty: none")
    quantization: str | None = setting("exl3", "weight format; empty: what the checkpoint says")
    load_format: str | None = setting(None, "weight loader; empty: vLLM's own choice")

    # parallelism
    tp: int | None = setting(None, "tensor parallel size; must equal the kit's number of nodes", ge=1, le=8)
    nnodes: int | None = setting(None, "number of nodes; must equal the kit's", ge=1, le=8)
    master_port: int = setting(29521, "TCP port where the ranks meet on the head", ge=1, le=65535)
    enable_expert_parallel: Switch = setting(0, "split experts over ranks instead of slicing each")
    tp3_head_override: int | None = setting(None, "three ranks: attention heads padded to this many, divisible by 3")
    mm_encoder_tp_mode: Literal["data", "weights"] | None = setting(None, "vision encoder: data = a copy per rank")

    # memory and scheduling
    gpu_mem_util: float = setting(0.85, "share of unified memory for weights and KV; 0.01 is 1.2 GiB", gt=0, le=1)
    kv_cache_memory_bytes: int | None = setting(None, "KV cache size, bytes; empty: what GPU_MEM_UTIL leaves", ge=1 << 20)
    kv_cache_dtype: str = setting("fp8", "KV cache type")
    max_num_batched_tokens: int = setting(7168, "tokens of one engine step", ge=1, le=8_388_608)
    long_prefill_token_threshold: int | None = setting(None, "cap on one prompt's share of a step, tokens", ge=1)
    prefix_match_unit: int | None = setting(None, "prefix cache granularity, tokens", ge=1)
    enforce_eager: Switch = setting(0, "no CUDA graphs: about three times slower")
    cg_estimate: Switch = setting(1, "reserve the estimated CUDA graph memory")
    cudagraph_sizes: str | None = setting(None, "batch sizes to capture, separated by blanks (default: from the speculation mode)")
    pytorch_cuda_alloc_conf: str | None = setting("expandable_segments:True", "PyTorch allocator options")
    vllm_execute_model_timeout_seconds: int = setting(1800, "longest engine step; the stock 300 kills a cold compile", ge=1)

    # vision
    language_model_only: Switch = setting(0, "load no vision tower")
    skip_mm_profiling: Switch = setting(1, "do not profile the largest images at start")
    limit_mm: str | None = setting('{"image":48,"video":1}', "images and videos per request, JSON")
    mm_image_tokens: int | None = setting(2048, "largest image, tokens; empty: the checkpoint's 8000", ge=1)
    video_num_frames: int | None = setting(None, "frames taken from a video", ge=1)
    mm_processor_cache_gb: float = setting(1, "cache of processed images on the head, GiB", ge=0)

    # fabric
    nccl_ib_gid_index: int | None = setting(None, "RoCE v2 GID index for ranks without one of their own", ge=0, le=255)
    nccl_cross_nic: Switch = setting(0, "let NCCL rings change network devices")
    nccl_nchannels: int | None = setting(None, "NCCL channels, minimum and maximum", ge=1, le=64)
    nccl_ib_subnet_aware_routing: Switch | None = setting(None, "one subnet per cable: needed in a ring")
    nccl_ib_subnet_prefix_len: int | None = setting(None, "ring: prefix length of the cables' subnets", ge=1, le=32)
    nccl_p2p_disable: Switch | None = setting(None, "three nodes: no peer-to-peer")
    nccl_shm_disable: Switch | None = setting(None, "three nodes: no shared memory transport")
    nccl_buffsize: int | None = setting(None, "NCCL buffer per channel, bytes: pinned host memory on unified memory", ge=4096)
    nccl_ll128_buffsize: int | None = setting(None, "NCCL LL128 buffer, bytes", ge=4096)
    nccl_proto: str | None = setting(None, "NCCL protocols")
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"] = setting("WARN", "NCCL log level")
    nccl_switchless_ring_only: Switch = setting(0, "four nodes in a ring without a switch")
    use_host_nccl: Switch = setting(0, "ring: mount the patched NCCL library over the image's")
    nccl_host_dir: str = setting("~/nccl-2.30.7", "ring: folder of the patched NCCL library on every node")
    nccl_so_name: str = setting("libnccl.so.2.30.7", "ring: its file name")

    # what the public recipe's overlay reads; passed to every rank, effective in an image that implements it
    glm53_draft_kv_compact: Switch | None = setting(None, "compact draft KV (default: on with dflash)")
    glm53_dense_fp8: str | None = setting(None, "dense groups in FP8: off, all, or of shared,dense,kda,mla")
    glm53_kda_bf16_large_m: Switch | None = setting(None, "KDA in BF16 for large batches; needs kda in GLM53_DENSE_FP8")
    glm53_dense_exl3: Switch | None = setting(None, "dense layers in EXL3, two nodes only")
    glm53_adaptive_k: str | None = setting(None, "adaptive draft length: off, ema")
    glm53_adaptive_k_set: str | None = setting(None, "adaptive draft length: allowed lengths, separated by commas")
    glm53_apc_retention_interval: int | None = setting(None, "prefix cache retention, tokens, a multiple of 3584", ge=0)
    glm53_apc_retention_interval_swa: int | None = setting(None, "the same for the drafter's window; needs dflash", ge=0)
    exl3_fat_grouped: Switch | None = setting(None, "grouped EXL3 prefill (E3)")
    exl3_temp_rows_fused: int | None = setting(None, "rows of the fused EXL3 launch", ge=1, le=4096)
    glm53_kv_offload: Switch | None = setting(None, "KV offload tier")
    glm53_expose_cache_reset: Switch = setting(0, "unauthenticated cache reset routes")
    glm53_model_preset: Literal["dense-h3", "abliterated"] | None = setting(None, "a prepared pair of weights and drafter")
    tp3_overlay: str | None = setting(None, "three ranks: folder with the padded-head files, in the image")

    # ablation at load
    ablit: Switch = setting(0, "edit o_proj at load; see the ablation lab")

    # launching
    ready_timeout: float = setting(3600, "longest wait from launch to ready, seconds", gt=0, allow_inf_nan=False, local=True)
    stall_timeout: float | None = setting(
        None, "longest time without any progress of a start, seconds (default: by phase)", gt=0, allow_inf_nan=False, local=True
    )
    canary: Switch = setting(1, "ask a first question after the start; a wrong or broken answer fails it", local=True)
    canary_expect: str | None = setting("Paris", "word that the first answer must hold; empty: any answer does", local=True)
    watch_interval: float = setting(15, "watch: seconds from one look to the next", ge=1, allow_inf_nan=False, local=True)
    watch_strikes: int = setting(3, "watch: bad looks in a row before a failure counts", ge=2, le=100, local=True)
    ssh_config: str | None = setting(None, "OpenSSH client configuration to use (default: ~/.ssh/config)", local=True, place=True)
    skip_pull: Switch = setting(0, "leave the images on the nodes alone: neither pull nor ship; differing ones are refused", local=True)
    model_fallback: str | None = setting(None, "`invoke download`: repository to take when MODEL cannot be had", local=True)
    model_fallback_revision: str | None = setting(None, "commit of MODEL_FALLBACK", pattern=r"^[0-9a-f]{40}$", local=True)
    hf_download_exclude: str | None = setting(None, "files of a repository not to download: globs, separated by commas", local=True)
    hf_token: str | None = setting(None, "Hugging Face token (default: the token file of `hf auth login`)", secret=True, local=True)
    skip_download: Switch = setting(0, "`up` does not download weights", local=True)
    skip_sync: Switch = setting(0, "`up` does not bring the workers' weights to the head's", local=True)
    sync_streams: int = setting(4, "parallel rsync streams to each worker", ge=1, le=16, local=True)
    sync_verify: Literal["header", "sha256"] = setting(
        "header", "how a copied file is checked on arrival: size and safetensors header, or sha256", local=True
    )
    skip_doctor: Switch = setting(0, "`up` starts although doctor finds an error", local=True)
    skip_selfcheck: Switch = setting(0, "`up` does not run the plugin's selfcheck in the image", local=True)
    nfs_share: Switch = setting(0, "workers mount the head's cache read-only; nothing is copied to them", local=True)
    nfs_server_ip: str | None = setting(None, "NFS server address on the fabric", local=True, place=True)
    extra_args: str | None = setting(None, "further `vllm serve` arguments, quoted as in a shell; they win over ours")
    glm53_extra_env: str | None = setting(None, "further variables for every rank: NAME=VALUE, quoted as in a shell")

    def node(self, role: str) -> NodeSettings:
        """The settings of one role; the machine of a single-node kit has those of the head."""
        prefix = "head" if role == "local" else role
        return NodeSettings.model_validate({name: getattr(self, f"{prefix}_{name}") for name in NodeSettings.model_fields})

    @pydantic.field_validator("extra_args", "glm53_extra_env")
    @classmethod
    def _splits(cls, value: str | None) -> str | None:
        shlex.split(value or "")
        return value


def _with_nodes() -> type[Settings]:
    """Settings plus every NodeSettings field once per role."""
    fields: dict[str, Any] = {}
    for role in ROLES:
        for name, field in NodeSettings.model_fields.items():
            fields[f"{role}_{name}"] = (field.annotation, _for_role(role, field))
    return pydantic.create_model("AllSettings", __base__=Settings, **fields)


def _for_role(role: str, field: pydantic.fields.FieldInfo) -> Any:
    limits = {type(limit).__name__.lower(): getattr(limit, type(limit).__name__.lower()) for limit in field.metadata}
    notes = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return setting(field.default, f"{role}: {field.description}", **limits, **notes)


AllSettings = _with_nodes()
