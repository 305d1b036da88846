"""Which engines the GPU checks start, and which of them must answer alike."""

from dataclasses import dataclass, field
from typing import Any

# Of log-probabilities. transformers' own bf16 differs from its fp32 by up to 0.1 on these models (reference.json).
NEAR = 0.15
TIE = 0.1  # a lead below which two correct engines may choose differently: these logits are bf16, in steps of 1/16
THIN = 0.02  # a router's margin (models.margins) below which bf16 may choose another expert, whose log-probability is another
MOE_PROMPTS = ([7, 101, 33, 250, 12, 400], list(range(300, 340)))  # those of tests/overlay/generate.py
SPARSE = {"backend": "FLASHMLA_SPARSE"}


@dataclass(frozen=True)
class Engine:
    """`prompts`: which of the prompts; `llm`: LLM arguments beside engine.SHARED.

    `foretold`: its drafter always says the successor (tests.gpu.speculation); `edited`: how each part is, of those that ABLIT=1 edits;
    `broken`: what engine.py breaks in it on purpose; `last`: it starts when all others have ended.
    """

    name: str
    model: str
    prompts: str = "short"
    llm: dict[str, Any] = field(default_factory=dict)
    times: int = 1
    limit_s: float = 230
    environment: dict[str, str] = field(default_factory=dict)
    foretold: bool = False
    edited: dict[str, str] | None = None
    broken: str = ""
    last: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return ({"attention_config": SPARSE} if self.model.startswith("glm") else {}) | self.llm

    @property
    def drafts(self) -> int:
        """Draft tokens at a time, or 0."""
        return int(self.llm.get("speculative_config", {}).get("num_speculative_tokens", 0))

    @property
    def gpus(self) -> int:
        return int(self.llm.get("tensor_parallel_size", 1))


EAGER = {"enforce_eager": True}
TWO = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
NCCL = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}  # symmetric memory may use NVLink multicast
LONG = {"max_model_len": 2560, "max_num_batched_tokens": 4096}


def speculating(**config: Any) -> dict[str, Any]:
    return {"speculative_config": config}


# "{models}" stands for the folder
ABLIT = {
    "ABLIT": "1", "ABLIT_METHOD": "proj", "ABLIT_LAYERS": "0-3", "ABLIT_ALPHA": "1.5", "ABLIT_INCLUDE_MTP": "0",
    "ABLIT_DIRECTION": "{models}/direction.safetensors",
}  # fmt: skip

# In order of importance: the first ones start first.
ENGINES = (
    Engine("glm-dense", "glm-dense", llm=EAGER, times=16),
    Engine("glm-exl3", "glm-exl3", llm=EAGER, times=16),
    Engine("glm-exl3-graphs", "glm-exl3"),
    Engine("glm-exl3-mtp", "glm-exl3", llm=EAGER | speculating(method="mtp", num_speculative_tokens=2)),
    Engine(
        "glm-exl3-dflash2", "glm-exl3",
        llm=EAGER | speculating(method="dflash", model="dflash2", num_speculative_tokens=3, attention_backend="FLASH_ATTN"),
    ),
    Engine("glm-exl3-ablit", "glm-exl3", llm=EAGER, environment=ABLIT),
    Engine("glm-ablated", "glm-ablated", llm=EAGER),
    Engine("glm-exl3-long", "glm-exl3", "long", EAGER | LONG),
    Engine("glm-dense-long", "glm-dense", "long", EAGER | LONG),
    Engine("glm-exl3-tp2", "glm-exl3", llm=EAGER | TWO, environment=NCCL),
    Engine("glm-exl3-tp2-graphs", "glm-exl3", llm=TWO, environment=NCCL),
    Engine("glm-exl3-ep2", "glm-exl3", llm=EAGER | TWO | {"enable_expert_parallel": True}, environment=NCCL),
    Engine("moe-exl3-tp2", "moe-exl3", "moe", EAGER | TWO, environment=NCCL),
    Engine("moe-dense", "moe-dense", "moe", EAGER),
    Engine("moe-exl3", "moe-exl3", "moe", EAGER),
    Engine("moe-exl3-graphs", "moe-exl3", "moe"),
    Engine("glm-swapped", "glm-swapped", llm=EAGER),
    Engine("glm-exl3-prefix", "glm-exl3", llm=EAGER | {"enable_prefix_caching": True}, times=3),
    Engine(
        "glm-exl3-mtp-prefix", "glm-exl3",
        llm=speculating(method="mtp", num_speculative_tokens=1) | {"enable_prefix_caching": True},
    ),
    Engine("glm-exl3-fp8-cache", "glm-exl3", llm=EAGER | {"kv_cache_dtype": "fp8_ds_mla"}),
    Engine("glm-exl3-chosen", "glm-exl3", llm=EAGER | {"attention_config": {}}),  # the attention backend that vLLM chooses
    Engine("glm-exl3-loop", "glm-exl3", llm=EAGER, environment={"EXL3_MOE_PATH": "loop"}),
    Engine("glm-exl3-exact", "glm-exl3", llm=EAGER, environment={"EXL3_DETERMINISTIC": "1"}),
    Engine("glm-exl3-torch", "glm-exl3", llm=EAGER, environment={"EXL3_MOE_PATH": "torch"}),
    Engine("glm-exl3-mtp-graphs", "glm-exl3", llm=speculating(method="mtp", num_speculative_tokens=2)),
    Engine(
        "glm-exl3-dflash2-graphs", "glm-exl3",
        llm=speculating(method="dflash", model="dflash2", num_speculative_tokens=3, attention_backend="FLASH_ATTN"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """`found` must answer as `wanted` does (an engine, or "transformers")."""

    found: str
    wanted: str
    near: float = NEAR
    differ: bool = False


PAIRS = (
    Pair("glm-dense", "transformers"),
    Pair("glm-exl3", "transformers"),
    Pair("glm-exl3", "glm-dense"),
    Pair("glm-exl3-torch", "glm-exl3"),
    Pair("glm-exl3-loop", "glm-exl3"),
    Pair("glm-exl3-exact", "glm-exl3"),
    Pair("glm-exl3-chosen", "glm-exl3"),
    Pair("glm-exl3-prefix", "glm-exl3"),
    Pair("glm-exl3-fp8-cache", "glm-exl3"),
    Pair("glm-exl3-graphs", "glm-exl3"),
    Pair("glm-exl3-mtp", "glm-exl3"),
    Pair("glm-exl3-mtp-graphs", "glm-exl3"),
    Pair("glm-exl3-mtp-prefix", "glm-exl3"),
    Pair("glm-exl3-dflash2", "glm-exl3"),
    Pair("glm-exl3-dflash2-graphs", "glm-exl3"),
    Pair("glm-exl3-long", "transformers-long"),
    Pair("glm-exl3-long", "glm-dense-long"),
    Pair("glm-exl3-tp2", "glm-exl3"),
    Pair("glm-exl3-tp2-graphs", "glm-exl3"),
    Pair("glm-exl3-ep2", "glm-exl3"),
    Pair("moe-exl3-tp2", "moe-exl3"),
    Pair("moe-exl3", "moe-dense"),
    Pair("moe-exl3-graphs", "moe-exl3"),
    Pair("glm-exl3-ablit", "glm-ablated"),
    Pair("glm-exl3-ablit", "glm-exl3", differ=True),
    Pair("glm-swapped", "glm-exl3", differ=True),
)
