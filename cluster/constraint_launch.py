"""Constraints of nodes, ring and ports: groups 16 to 22 and our own (0); and what only the nodes can tell."""

from __future__ import annotations

import ipaddress
import re

from cluster.constraint_model import (
    CLUSTER,
    EVERY,
    FOUR,
    GB10,
    LLAMA,
    NOT_RING,
    RING,
    VLLM,
    Constraint,
    OnNodes,
    described,
    flags,
    placeholders,
)
from cluster.settings import Effective


def _addresses(e: Effective) -> dict[str, str | None]:
    """Field -> fabric address of every node of the kit."""
    return {f"{role}_ip": e.settings.node(role).ip for role in e.kit.nodes}


def _missing(e: Effective) -> str:
    return described(e, [field for field, ip in _addresses(e).items() if not ip])


def _malformed(e: Effective) -> str:
    return described(e, [field for field, ip in _addresses(e).items() if ip and not _usable(ip, e.kit.hardware == "gb10")])


def _usable(text: str, real: bool) -> bool:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast or (real and address.is_loopback))


def _duplicates(e: Effective) -> str:
    found = _addresses(e)
    given = [ip for ip in found.values() if ip]
    return described(e, [field for field, ip in found.items() if ip and given.count(ip) > 1])


def _adapters(e: Effective) -> str:
    """The ring's nodes without exactly two distinct RoCE devices; `=` in front and `:PORT` behind are NCCL's syntax."""
    bad = []
    for role in e.kit.nodes:
        devices = [word.partition(":")[0].strip() for word in (e.settings.node(role).cx7_ib or "").removeprefix("=").split(",")]
        if len(devices) != 2 or len({*devices}) != 2 or not all(devices):
            bad.append(f"{role}_cx7_ib")
    return described(e, bad)


def _connector(e: Effective) -> str:
    if "expandable_segments:true" not in (e.settings.pytorch_cuda_alloc_conf or "").lower():
        return ""
    named = [flag for flag in flags(e.settings) if flag.startswith(("--kv-transfer", "--kv-offload"))]
    return f"{', '.join(named)} brings a KV connector" if named else "the offload tier is one" if e.settings.glm53_kv_offload else ""


def _retention(e: Effective) -> bool:
    given = (e.settings.glm53_apc_retention_interval or 0, e.settings.glm53_apc_retention_interval_swa or 0)
    return any(value % 3584 or value > 1_000_000 for value in given)


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


LAUNCH: tuple[Constraint, ...] = (
    Constraint(
        "addresses-missing", 0, CLUSTER, (), _missing,
        rule="start a kit of several nodes without the address of each (HEAD_IP, WORKER_IP, ...)",
        evidence="ranks meet at HEAD_IP and send their traffic from their own address; a guess ends in a silent hang",
        hint="the fabric addresses in .env; `ip -4 addr` on each node shows them",
    ),
    Constraint(
        "addresses-malformed", 0, CLUSTER, (), _malformed,
        rule="use anything but the nodes' own IPv4 addresses (no names, no 127.x on Sparks)",
        evidence="each rank announces its address to the others as it is written",
        hint="the address of the ConnectX-7 device on each node",
    ),
    Constraint(
        "placeholders", 0, EVERY, (), placeholders,
        rule="leave CHANGE_ME in a setting",
        evidence="a template's placeholder fails only when it is first used; the recipe's ring launcher refuses it",
        hint="the value of your machine",
    ),
    Constraint(
        "long-prefill", 0, GB10, ("long_prefill_token_threshold", "max_num_batched_tokens"),
        lambda e: (e.settings.long_prefill_token_threshold or 0) > e.settings.max_num_batched_tokens,
        rule="let LONG_PREFILL_TOKEN_THRESHOLD exceed MAX_NUM_BATCHED_TOKENS",
        evidence="it is one prompt's share of a step",
        hint="half of MAX_NUM_BATCHED_TOKENS",
    ),
    Constraint(
        "retention-multiple", 0, GB10, ("glm53_apc_retention_interval", "glm53_apc_retention_interval_swa"), _retention,
        rule="set a retention interval that is no multiple of 3584 up to a million",
        evidence="the attention layers' block is 3584 tokens; the recipe refuses other values",
        hint="0, 3584, 7168, ... or empty",
    ),
    Constraint(
        "addresses-duplicate", 16, CLUSTER, (), _duplicates,
        rule="give two nodes the same address",
        evidence="two ranks on one node and none on the other; the recipe's ring launcher refuses it",
        hint="one address of its own for each node",
    ),
    Constraint(
        "ring-mode", 16, RING, ("nccl_switchless_ring_only", "use_host_nccl", "nccl_ib_subnet_aware_routing"),
        lambda e: not (e.settings.nccl_switchless_ring_only and e.settings.use_host_nccl and e.settings.nccl_ib_subnet_aware_routing),
        rule="run the ring without NCCL_SWITCHLESS_RING_ONLY=1, USE_HOST_NCCL=1 and NCCL_IB_SUBNET_AWARE_ROUTING=1",
        evidence="stock NCCL builds a tree between nodes without a cable: 'ncclTransportTreeConnect unhandled error'",
        hint="all three 1, as in kits/ring4.toml",
    ),
    Constraint(
        "ring-nodes", 16, RING, ("kit",),
        lambda e: len(e.kit.nodes) != 4 and f"the kit has {len(e.kit.nodes)} nodes",
        rule="run the ring with other than four nodes",
        evidence="ring mode was made for and tried on four; the recipe refuses other TP or NNODES",
        hint="KIT=spark3 for a triangle, KIT=spark4 behind a switch",
    ),
    Constraint(
        "ring-adapters", 16, RING, (), _adapters,
        rule="run the ring without exactly two RoCE devices in each node's *_CX7_IB",
        evidence="every node has one cable to either neighbour; with one device, or the same twice, half of the ring is not there",
        hint="HEAD_CX7_IB=rocep1s0f0,rocep1s0f1 and so on; `rdma link` lists them",
    ),
    Constraint(
        "ring-nccl-path", 16, RING, ("nccl_host_dir", "nccl_so_name"),
        lambda e: not re.fullmatch(r"[~/][^:]*", e.settings.nccl_host_dir) or bool(re.search(r"[/:]", e.settings.nccl_so_name)),
        rule="give NCCL_HOST_DIR other than as an absolute path without ':'",
        evidence="it is mounted over the image's library; ':' separates the parts of a mount",
        hint="NCCL_HOST_DIR=~/nccl-2.30.7 and NCCL_SO_NAME=libnccl.so.2.30.7",
    ),
    Constraint(
        "ring-elsewhere", 16, NOT_RING, ("nccl_switchless_ring_only", "kit"),
        lambda e: e.settings.nccl_switchless_ring_only == 1,
        rule="set NCCL_SWITCHLESS_RING_ONLY=1 outside the ring",
        evidence="it needs four nodes in a ring and the patched library; the recipe refuses it otherwise",
        hint="NCCL_SWITCHLESS_RING_ONLY=0, or KIT=ring4",
    ),
    Constraint(
        "ring-dflash-context", 17, RING, ("spec_method", "max_model_len"),
        lambda e: e.settings.spec_method == "dflash" and e.settings.max_model_len >= 512_000,
        rule="combine dflash and 512k or more in the ring",
        evidence="all four ranks hang",
        hint="MAX_MODEL_LEN=262144 (measured: a pool of 3.4M tokens), or SPEC_METHOD=none",
    ),
    Constraint(
        "ring-million", 17, RING, ("max_model_len",),
        lambda e: e.settings.max_model_len >= 1_000_000,
        rule="claim a million tokens in the ring",
        evidence="262144 is the longest that was measured there",
        hint="MAX_MODEL_LEN=262144",
    ),
    Constraint(
        "four-memory", 17, FOUR, ("gpu_mem_util",),
        lambda e: e.settings.gpu_mem_util >= 0.85,
        rule="set GPU_MEM_UTIL to 0.85 or more on four nodes",
        evidence="0.85 left 1-2 GiB a node and cost two engine deaths (NV_ERR_NO_MEMORY); 0.75 is as fast (GLM PR 115)",
        hint="GPU_MEM_UTIL=0.75",
    ),
    Constraint(
        "host-nccl", 18, NOT_RING, ("use_host_nccl", "kit"),
        lambda e: e.settings.use_host_nccl == 1,
        rule="set USE_HOST_NCCL=1 outside the ring",
        evidence="a second NCCL library in the process trips DeepEP's duplicate check, and the library is the ring's",
        hint="USE_HOST_NCCL=0, or KIT=ring4",
    ),
    Constraint(
        "node-count", 19, EVERY, ("tp", "nnodes", "kit"),
        lambda e: {e.settings.tp, e.settings.nnodes} - {None, len(e.kit.nodes)} != set() and f"the kit has {len(e.kit.nodes)} nodes",
        rule="set TP or NNODES to other than the kit's number of nodes",
        evidence="TP=3 in the two-node file only warns in the recipe, and is not supported there",
        hint="leave both empty and choose KIT=spark2, spark3, spark4 or ring4",
    ),
    Constraint(
        "connector-allocator", 20, VLLM, ("pytorch_cuda_alloc_conf", "glm53_kv_offload", "extra_args"), _connector,
        rule="combine a KV connector (GLM53_KV_OFFLOAD=1, --kv-transfer-config) with expandable_segments",
        evidence="the two do not work together; the recipe's NVMe cache branch takes expandable_segments out",
        hint="PYTORCH_CUDA_ALLOC_CONF= (empty)",
    ),
    Constraint(
        "cache-reset", 20, VLLM, ("glm53_expose_cache_reset", "host"),
        lambda e: e.settings.glm53_expose_cache_reset == 1 and not is_loopback(e.settings.host),
        rule="expose the cache reset routes to a network (GLM53_EXPOSE_CACHE_RESET=1 with HOST other than 127.0.0.1)",
        evidence="these routes ask for no key: VLLM_API_KEY guards /v1 only",
        hint="HOST=127.0.0.1 and an ssh tunnel, or GLM53_EXPOSE_CACHE_RESET=0",
    ),
    Constraint(
        "speculation-vllm", 21, VLLM, ("spec_method",),
        lambda e: e.settings.spec_method == "ngram",
        rule="use ngram with vLLM here",
        evidence="the recipe takes every unknown method for mtp without a word",
        hint="SPEC_METHOD=dflash, mtp or none",
    ),
    Constraint(
        "speculation-llama", 21, LLAMA, ("spec_method",),
        lambda e: e.settings.spec_method in ("dflash", "mtp"),
        rule="use dflash or mtp with the local kit",
        evidence="its model has no drafter and no MTP block",
        hint="SPEC_METHOD=ngram or none",
    ),
    Constraint(
        "ports", 21, VLLM, ("port", "master_port"),
        lambda e: e.settings.port == e.settings.master_port,
        rule="use one port for PORT and MASTER_PORT",
        evidence="the ranks' meeting point and the API listen on the same node",
        hint="MASTER_PORT=29521",
    ),
    Constraint(
        "nfs-loopback", 22, CLUSTER, ("nfs_share", "nfs_server_ip"),
        lambda e: bool(e.settings.nfs_share and e.settings.nfs_server_ip) and not _usable(e.settings.nfs_server_ip or "", True),
        rule="serve weights over NFS from a loopback address",
        evidence="workers would ask themselves; the recipe refuses it",
        hint="the head's fabric address, or leave NFS_SERVER_IP empty",
    ),
)  # fmt: skip

ON_NODES: tuple[OnNodes, ...] = (
    OnNodes("image-kernels", 2, "the image is linux/arm64 and holds SM121a kernels"),
    OnNodes("memory-headroom", 6, "MemAvailable >= GPU_MEM_UTIL x total + 2 GiB on every node, just before the launch"),
    OnNodes("dense-pack-metadata", 12, "the checkpoint's dense EXL3 metadata agrees with GLM53_DENSE_EXL3; ABLIT=1 meets no EXL3 o_proj"),
    OnNodes("overlay-variables", 14, "the image implements each GLM53_* and EXL3_* variable that is set, the same on all ranks"),
    OnNodes("rank-equality", 14, "the running ranks' words and variables differ only in what is rank-specific (docker inspect)"),
    OnNodes("tp3-files", 15, "TP3_OVERLAY exists in the image of every rank, and the padded drafter on every node"),
    OnNodes("image-identity", 16, "all nodes have the same image id"),
    OnNodes("gid-type", 16, "the GID at the index is RoCE v2 and not zero on every device listed, per node"),
    OnNodes("adapter-state", 16, "*_CX7_IF and *_CX7_IB exist and are up"),
    OnNodes("fabric-address", 16, "each address is on the node's fabric device and not an alias on lo (10.0.0.x), HEAD_IP on this machine"),
    OnNodes("ring-library", 16, "the patched NCCL library has the same hash on all nodes and holds SWITCHLESS_RING_ONLY"),
    OnNodes("ring-pip-path", 16, "the image's libnccl lies at the path the library is mounted over, the same on all ranks"),
    OnNodes("gpu-idle", 16, "no other process on any GPU"),
    OnNodes("ring-restart", 16, "the ring is not restarted in place: down, all checks, up"),
    OnNodes("one-topology", 19, "no rank of another kit runs on these nodes; one lock for all kits"),
    OnNodes("network-trust", 20, "who can reach HOST:PORT; /health, /metrics and cache reset ask for no key"),
    OnNodes("preset-built", 21, "with SKIP_DOWNLOAD=1 the preset's pair of weights and drafter is already there"),
    OnNodes("ports-free", 21, "PORT and MASTER_PORT are free on the head"),
    OnNodes("nfs-address", 22, "the NFS server address is on a fabric device, not an alias on lo"),
)
