"""An `.env` of the public recipe keeps working: every name of its documentation is used, passed on, or noted with a reason."""

from pathlib import Path

import pytest

from cluster import recipe, settings
from cluster.engines import vllm
from cluster.errors import BadSettings
from cluster.ranks import ranks

# Names from the recipe's documentation that are no settings here (facts; two and three nodes' values where they have any).
PASSED_ON = [
    "GLM53_APC_NO_STORE", "GLM53_KV_CAPACITY_LOG", "GLM53_COLD_LOAD_UMA", "GLM53_COLD_LOAD_STAGE_MMAP", "GLM53_COOP_GEOMETRY",
    "GLM53_EXL3_MOE_FAST", "GLM53_INDEXER_WORKSPACE", "GLM53_SPINWAIT_MS", "GLM53_SUPPRESS_STOPS_IN_REASONING",
    "GLM53_MIXED_PREFILL_CHUNK", "GLM53_FAIR_PREFILL_SHARE", "GLM53_FAIR_PREFILL_CHUNK", "GLM53_ADAPTIVE_K_ALPHA",
    "EXL3_FUSED_MOE", "EXL3_FAT_KERNEL", "EXL3_MOE_ROW_TILE", "INSTANTTENSOR_BUFFER_SIZE", "ABLIT_LAYERS", "ABLIT_ALPHA",
    "HAREM_KDA_FLASHKDA", "VLLM_SM120_SPARSE_MLA_SLICE_TOKENS", "GLM53_LOAD_CLONE", "DEFAULT_MAX_NEW_TOKENS",
    "GLM53_TOOL_CHOICE_NONE", "GLM53_DRAFTER_HIT", "GLM53_RELEASE_INDEXER_LOGITS", "EXL3_MOE_PATH", "EXL3_DETERMINISTIC",
    "EXL3_PDL_SM12X", "EXL3_INT8_GEMV",
]  # fmt: skip
NOTED = [
    "EXPECTED_SHARDS", "MODEL_CACHE_NAME", "HF_BIN", "CONTAINER_HEAD", "CONTAINER_WORKER2", "WORKER_HOME",
    "WORKER2_HOME", "TRITON_HOST_CACHE", "WORKER_TRITON_HOST_CACHE", "NV_HOST_CACHE", "TILELANG_CACHE_DIR", "CHAT_TEMPLATE_HOST",
    "EXL3_OVERLAY_HOST", "KPOOL_PATCH_HOST", "DFLASH2_MODEL_HOST", "SOCKET_IFNAME", "WORKER2_SOCKET_IFNAME", "HEAD_HOST_IP",
    "NCCL_MAX_NCHANNELS", "TORCH_CUDA_ARCH_LIST", "PULL", "SKIP_BUILD", "GHCR_TOKEN", "FORCE_SYNC", "REFRESH_WEIGHTS", "NFS_CLIENTS",
    "GLM53_HOST_MEM_HYGIENE", "GLM53_BOOT_SHAPE_WARMUP", "GLM53_WARMUP_CANARY", "TAIL",
]  # fmt: skip


def load(tmp_path: Path, text: str) -> settings.Effective:
    (tmp_path / ".env").write_text(f"HEAD_IP=10.0.0.1\nWORKER_IP=10.0.0.2\n{text}")
    return settings.load({}, {}, tmp_path / ".env")


@pytest.mark.parametrize("name", PASSED_ON)
def test_what_the_overlay_reads_reaches_every_rank(tmp_path: Path, name: str) -> None:
    effective = load(tmp_path, f"{name}='a b'\n")
    assert effective.kit.name == "spark2"
    assert [vllm.environment(rank)[name] for rank in ranks(effective)] == ["a b", "a b"]
    assert effective.notes == ()


@pytest.mark.parametrize("name", NOTED)
def test_what_has_nothing_to_do_here_is_noted_without_its_value(tmp_path: Path, name: str) -> None:
    effective = load(tmp_path, f"{name}=s3cret\n")
    (note,) = effective.notes
    assert note.startswith(f".env line 3: {name} has no effect here: ")
    assert "s3cret" not in note
    assert not any("s3cret" in vllm.environment(rank).values() for rank in ranks(effective))


def test_overlay_variables_come_behind_those_of_extra_env(tmp_path: Path) -> None:
    effective = load(tmp_path, "GLM53_SPINWAIT_MS=16\nGLM53_EXTRA_ENV=A=1\nEXL3_FUSED_MOE=\n")
    assert effective.settings.glm53_extra_env == "A=1 GLM53_SPINWAIT_MS=16"
    assert effective.sources["glm53_extra_env"] == ".env line 4"


@pytest.mark.parametrize("name", ["GLM53_SPINWAIT_MSS", "EXL3_FUSED", "CONTAINER", "WORKER4_IP", "glm53_spinwait_ms"])
def test_a_misspelt_name_is_still_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadSettings, match=f"unknown setting {name}"):
        load(tmp_path, f"{name}=1\n")


def test_no_setting_is_also_in_the_lists() -> None:
    assert not [name for name in settings.NAMES if recipe.retired(name) or recipe.OVERLAY.fullmatch(name)]
