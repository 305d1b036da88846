"""Plans: golden texts for every kit and speculation mode, parity of the ranks, and that no setting is without effect."""

import os
import shlex
import socket
from pathlib import Path

import pytest

from cluster import kits
from cluster.engines import vllm
from cluster.fields import ROLES, NodeSettings
from cluster.plan import plan_down, plan_up, render
from cluster.ranks import ranks
from cluster.settings import FIELDS, noted
from tests.cluster.plans import effective

GOLDEN = Path(__file__).parents[1] / "golden"
SPARK_KITS = ("spark2", "spark3", "spark4", "ring4")
CASES = [*((kit, mode) for kit in SPARK_KITS for mode in ("dflash", "mtp", "none")), ("twin", "none")]


def rendered(kit: str, **changed: str) -> str:
    return render(plan_up(effective(kit, **changed))) + "\n"


@pytest.mark.parametrize(("kit", "mode"), CASES)
def test_golden(kit: str, mode: str) -> None:
    """To accept a change after reading it: UPDATE_GOLDEN=1 pytest tests/cluster/test_plan.py."""
    path, text = GOLDEN / f"plan-{kit}-{mode}.txt", rendered(kit, SPEC_METHOD=mode)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_kit_has_a_golden_plan() -> None:
    assert {kit for kit, _ in CASES} | {"local"} == set(kits.names())


@pytest.mark.parametrize(("kit", "mode"), CASES)
def test_ranks_differ_only_in_rank_specific_words(kit: str, mode: str) -> None:
    all_ranks = ranks(effective(kit, SPEC_METHOD=mode))
    common = [_without_rank(vllm.serve(rank)) for rank in all_ranks]
    assert all(words == common[0] for words in common)
    assert [rank for rank in all_ranks if "--headless" not in vllm.serve(rank)] == [all_ranks[0]]
    numbers = [vllm.serve(rank)[vllm.serve(rank).index("--node-rank") + 1] for rank in all_ranks]
    assert numbers == [str(number) for number in range(len(all_ranks))]


def _without_rank(words: tuple[str, ...]) -> list[str]:
    at = words.index("--node-rank")
    return [word for i, word in enumerate(words) if i not in (at, at + 1) and word != "--headless"]


RANK_VARIABLES = {
    "VLLM_HOST_IP",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "VLLM_CPU_OMP_THREADS_BIND",
}


@pytest.mark.parametrize(("kit", "mode"), CASES)
def test_ranks_environments_differ_only_in_rank_specific_variables(kit: str, mode: str) -> None:
    environments = [vllm.container_environment(rank) for rank in ranks(effective(kit, SPEC_METHOD=mode))]
    shared = [{name: value for name, value in env.items() if name not in RANK_VARIABLES} for env in environments]
    assert all(env == shared[0] for env in shared)


def test_no_variable_is_ever_empty() -> None:
    for kit, mode in CASES:
        for rank in ranks(effective(kit, SPEC_METHOD=mode)):
            assert "" not in vllm.container_environment(rank).values()


def test_the_public_checkpoints_are_data_and_the_default_is_one_of_them() -> None:
    packs = kits.checkpoints()
    assert {name: pack.licence for name, pack in packs.items()} == {"tensorfold": "Apache-2.0", "tr3": "ShapleyMCG 1.0 (attribution)"}
    served = effective("spark2").settings
    assert (served.model, served.model_revision) == (packs["tensorfold"].repo, packs["tensorfold"].revision)
    start = plan_up(effective("spark2", MODEL=packs["tr3"].repo, MODEL_REVISION=packs["tr3"].revision)).stage("start rank 0").steps[0]
    assert start.request["record"]["weights"]["licence"] == "ShapleyMCG 1.0 (attribution)"
    assert f"models--Mia-AiLab--GLM-5.3-Flash-EXL3-TR3-4bpw/snapshots/{packs['tr3'].revision}" in start.shown


def test_the_public_two_node_command_line() -> None:
    """The public recipe's rank 0 words (facts in the docstring of engines/vllm.py), each with the value it has there."""
    words = vllm.serve(ranks(effective("spark2"))[0])
    for flag, value in {
        "--tensor-parallel-size": "2", "--nnodes": "2", "--node-rank": "0", "--master-addr": "10.0.0.1", "--master-port": "29521",
        "--distributed-executor-backend": "mp", "--tool-call-parser": "glm47", "--reasoning-parser": "glm45", "--quantization": "exl3",
        "--max-model-len": "850000", "--gpu-memory-utilization": "0.85", "--max-num-seqs": "4", "--max-num-batched-tokens": "7168",
        "--kv-cache-dtype": "fp8", "--limit-mm-per-prompt": '{"image":48,"video":1}', "--mm-processor-kwargs": '{"max_image_tokens":2048}',
        "--mm-processor-cache-gb": "1", "--kv-cache-memory-bytes": "11811160064", "--served-model-name": "GLM-5.3-Flash-EXL3",
    }.items():  # fmt: skip
        assert words[words.index(flag) + 1] == value, flag
    sizes = words[words.index("--cudagraph-capture-sizes") + 1 :][:7]
    assert sizes == ("1", "2", "4", "8", "16", "24", "32")
    for switch in ("--enable-prefix-caching", "--enable-auto-tool-choice", "--skip-mm-profiling", "--no-enable-flashinfer-autotune"):
        assert switch in words


@pytest.mark.parametrize(
    ("changed", "sizes"),
    [
        # 4 requests, 7 drafted: n * 8 for n = 1..4 is in the list already
        ({}, "1 2 4 8 16 24 32"),
        # 8 requests, 3 drafted: n * 4 up to 32
        ({"MAX_NUM_SEQS": "8", "DFLASH_TOKENS": "3"}, "1 2 4 8 12 16 20 24 28 32"),
        # adaptive lengths 2, 4, 7 and 4 requests: multiples of 3, 5 and 8
        ({"GLM53_ADAPTIVE_K": "ema"}, "1 2 3 4 5 6 8 9 10 12 15 16 20 24 32"),
        # 4 requests, 2 drafted: multiples of 3 up to 12
        ({"SPEC_METHOD": "mtp"}, "1 2 3 4 6 8 9 12"),
        ({"SPEC_METHOD": "mtp", "MTP_TOKENS": "4"}, "1 2 3 4 5 6 8 10 12 15 20"),
        ({"CUDAGRAPH_SIZES": "1 8"}, "1 8"),
    ],
)
def test_graph_sizes(changed: dict[str, str], sizes: str) -> None:
    assert vllm.graph_sizes(effective("spark2", **changed).settings) == sizes.split()


def test_eager_captures_nothing() -> None:
    assert vllm.graph_sizes(effective("spark2", ENFORCE_EAGER="1").settings) is None


def test_planning_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    for kit in kits.names():
        render(plan_up(effective(kit)))
        render(plan_down(effective(kit)))


def test_weights_are_looked_at_as_far_as_up_may_change_them() -> None:
    def nodes(**changed: str) -> list[str]:
        found = [stage for stage in plan_up(effective("spark3", **changed)).stages if stage.name == "weights"]
        return [step.role for stage in found for step in stage.steps]

    assert nodes() == ["head", "worker", "worker2"]
    assert nodes(SKIP_DOWNLOAD="1") == ["head", "worker", "worker2"]  # what the head has is still copied
    assert nodes(SKIP_SYNC="1") == ["head"]
    assert nodes(SKIP_DOWNLOAD="1", SKIP_SYNC="1") == []
    asked = plan_up(effective("spark3", SPEC_METHOD="dflash")).stage("weights").steps[1].request
    assert [(each["folder"].partition("models--")[2], each["tokenizer"]) for each in asked["snapshots"]] == [
        ("Mia-AiLab--GLM-5.3-Flash-EXL3-4bpw-TensorFold/snapshots/76c0b5173166d2795dd48860f45d8224817f894c", True),
        ("incoai--GLM-5.3-Flash-DFlash2/snapshots/dc77ff1c99eeb2df044ee3d4f0094eb033fee410", False),
    ]


@pytest.mark.parametrize("kit", ["spark2", "local", "twin"])
def test_secrets_are_in_no_command_and_in_no_shown_plan(kit: str) -> None:
    plan = plan_up(effective(kit, VLLM_API_KEY="s3cr3t-key"))
    assert "s3cr3t-key" not in render(plan)
    starts = [step for stage in plan.stages for step in stage.steps if str(step.request.get("action", "")).endswith("start")]
    assert not any("s3cr3t-key" in word for step in starts for word in step.request["argv"])
    assert "s3cr3t-key" not in str([step.request["record"] for step in starts])
    assert ["s3cr3t-key" in str(step.request["env"]) for step in starts].count(True) == 1  # the head's alone


def test_hard_values_survive_a_shell() -> None:
    plan = plan_up(effective("spark2", SERVED_MODEL_NAME="a b'c\"d$e", LIMIT_MM='{"image": 4}'))
    start = next(step for step in plan.stage("start rank 0").steps)
    assert tuple(shlex.split(start.shown.removeprefix("VLLM_API_KEY=*** "))) == tuple(start.request["argv"])


def test_process_runtime_runs_the_node_s_own_venv() -> None:
    text = rendered("spark2", RUNTIME="process", HEAD_VENV="/opt/a", WORKER_VENV="~/b", HEAD_HF_HOME="/data/hf")
    head, worker = (
        next(line for line in text.splitlines() if line.startswith(f"   {role}") and "/bin/vllm serve" in line)
        for role in ("head", "worker")
    )
    assert "/opt/a/bin/vllm serve /data/hf/hub/models--" in head
    assert "HF_HOME=/data/hf" in head
    assert "b/bin/vllm serve" in worker
    assert "docker" not in head


# What each setting is changed to, to see that it changes the plan. Settings of one engine are changed on a kit of that engine.
OTHER = {
    "host": "127.0.0.9", "port": "8001", "served_model_name": "x", "max_model_len": "4096", "max_num_seqs": "3",
    "glm53_default_reasoning_effort": "low", "spec_method": "mtp", "dflash_tokens": "2", "dflash_draft_tp": "1",
    "dflash_model": "a/b", "dflash_revision": "0" * 40, "model": "a/b", "model_revision": "1" * 40, "runtime": "process",
    "skip_pull": "1", "registry": "10.0.0.1:5000",
    "image": "other:1", "image_entrypoint": "/opt/vllm", "extra_mounts": "/a:/b", "chat_template": "/t.jinja",
    "tool_call_parser": "", "reasoning_parser": "", "quantization": "", "load_format": "auto", "master_port": "29999",
    "enable_expert_parallel": "1", "tp3_head_override": "66", "mm_encoder_tp_mode": "data", "gpu_mem_util": "0.5",
    "kv_cache_memory_bytes": "2097152", "kv_cache_dtype": "auto", "max_num_batched_tokens": "4096",
    "long_prefill_token_threshold": "100", "prefix_match_unit": "64", "enforce_eager": "1", "cg_estimate": "0",
    "cudagraph_sizes": "1 2", "pytorch_cuda_alloc_conf": "", "vllm_execute_model_timeout_seconds": "9",
    "language_model_only": "1", "skip_mm_profiling": "0", "limit_mm": '{"image":1}', "mm_image_tokens": "16",
    "video_num_frames": "8", "mm_processor_cache_gb": "2", "nccl_ib_gid_index": "3", "nccl_cross_nic": "1",
    "nccl_nchannels": "4", "nccl_ib_subnet_aware_routing": "1", "nccl_ib_subnet_prefix_len": "24", "nccl_p2p_disable": "1",
    "nccl_shm_disable": "1", "nccl_buffsize": "4096", "nccl_ll128_buffsize": "4096", "nccl_proto": "LL", "nccl_debug":
    "INFO", "use_host_nccl": "1", "glm53_draft_kv_compact": "0", "glm53_dense_fp8": "all", "glm53_kda_bf16_large_m": "1",
    "glm53_dense_exl3": "1", "glm53_adaptive_k": "ema", "glm53_apc_retention_interval": "3584",
    "glm53_apc_retention_interval_swa": "3584", "exl3_fat_grouped": "1", "exl3_temp_rows_fused": "64", "glm53_kv_offload": "1",
    "glm53_expose_cache_reset": "1", "ablit": "1", "skip_download": "1", "skip_sync": "1", "skip_doctor": "1", "skip_selfcheck": "1",
    "sync_streams": "2", "sync_verify": "sha256",
    "nfs_share": "1", "ready_timeout": "5", "extra_args": "--foo bar", "glm53_extra_env": "A=1",
}  # fmt: skip
# Changed on another kit or together with another setting, or not part of a plan: they decide how a node is reached, are judged by the
# constraints, or name the kit.
ELSEWHERE = {
    "kit": "names the kit", "vllm_api_key": "test_secrets", "mtp_tokens": "below", "ngram_tokens": "below", "ngram_match":
    "below", "threads": "below", "nccl_host_dir": "below", "nccl_so_name": "below", "glm53_adaptive_k_set": "below", "tp":
    "judged", "nnodes": "judged", "nccl_switchless_ring_only": "judged",
    "glm53_model_preset": "judged", "tp3_overlay": "judged", "ssh_config": "reaches", "nfs_server_ip": "judged",
    "model_fallback": "test_download", "model_fallback_revision": "test_download", "hf_download_exclude": "test_download",
    "hf_token": "test_download",
    "build_base": "of a build",
    "stall_timeout": "test_waiting", "canary": "test_canary", "canary_expect": "test_canary", "watch_interval": "test_watch",
    "watch_strikes": "test_watch",
}  # fmt: skip


def test_every_setting_is_in_one_of_the_two_lists() -> None:
    of_nodes = {f"{role}_{name}" for role in ROLES for name in NodeSettings.model_fields}
    assert set(OTHER) | set(ELSEWHERE) | of_nodes == set(FIELDS)
    assert not set(OTHER) & set(ELSEWHERE)


@pytest.mark.parametrize("name", OTHER)
def test_every_setting_changes_the_plan(name: str) -> None:
    assert rendered("spark2", **{name.upper(): OTHER[name]}) != rendered("spark2")


@pytest.mark.parametrize(
    ("kit", "base", "name", "value"),
    [
        ("spark2", {"SPEC_METHOD": "mtp"}, "MTP_TOKENS", "3"),
        ("spark2", {"GLM53_ADAPTIVE_K": "ema"}, "GLM53_ADAPTIVE_K_SET", "1,2"),
        ("ring4", {}, "NCCL_HOST_DIR", "/opt/nccl"),
        ("ring4", {}, "NCCL_SO_NAME", "lib.so"),
        ("local", {}, "NGRAM_TOKENS", "3"),
        ("local", {}, "NGRAM_MATCH", "3"),
        ("local", {}, "THREADS", "2"),
        ("spark2", {}, "WORKER_CX7_IF", "eth9"),
        ("spark2", {}, "WORKER_CX7_IB", "roce9"),
        ("spark2", {}, "WORKER_GID", "5"),
        ("spark2", {}, "WORKER_HF_HOME", "/data"),
        ("spark2", {}, "WORKER_CACHE_ROOT", "/cache"),
        ("spark2", {"RUNTIME": "process", "HEAD_VENV": "/a"}, "WORKER_VENV", "/b"),
    ],
)
def test_settings_that_need_another_one(kit: str, base: dict[str, str], name: str, value: str) -> None:
    assert rendered(kit, **base, **{name: value}) != rendered(kit, **base)


def test_what_a_receipt_may_hold_has_no_place_in_it() -> None:
    places = {name for name in FIELDS if noted(name, "place")}
    assert {"host", "port", "head_ip", "worker3_ssh", "worker_user", "ssh_config", "head_hf_home", "extra_mounts"} <= places
    assert not places & {"gpu_mem_util", "spec_method", "model", "max_model_len"}
