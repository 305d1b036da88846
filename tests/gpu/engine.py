"""One real vLLM engine in a process of its own, on a GPU; the last line of its output that begins with "{" is JSON.

    python -m tests.gpu.engine '{"llm": {LLM arguments}, "prompts": [[ids], ...], "answer": TOKENS, "times": N, "broken": ""}'

"answers": per prompt the greedy ids, their log-probabilities and leads, the first time; "spread": over N times, per prompt and token, the
largest minus the least log-probability, while the ids agree; "counters": vLLM's counters that are not zero; "ready_s".
The plugin is found by its entry point, as in production. "broken": "kda" takes KDA's state as if no draft had been accepted, which answers
must show; the engine must then be in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0).
"""

import json
import os
import re
import sys
import time
from typing import Any

from tests.gpu.verdicts import spread
from tests.overlay.generate import answer

ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",  # for mHC, which TileLang does as well; the indexer takes DeepGEMM all the same
    "VLLM_HOST_IP": "127.0.0.1",
    "EXL3_MOE_PATH": "fused",  # or an error that says why not
}
# One card is shared by several engines at once, so none may measure its memory: the cache's size is given.
SHARED: dict[str, Any] = {
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 1 << 30,
    "max_model_len": 256,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 4,
    "seed": 0,
    "disable_log_stats": False,
    "enable_prefix_caching": False,
    "kernel_config": {"enable_jit_warmup": False},
}


def run(given: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    if given.get("broken"):
        forget_accepted()
    begin = time.monotonic()
    llm = LLM(**SHARED | given["llm"])
    ready = time.monotonic() - begin
    sampling = SamplingParams(temperature=0.0, max_tokens=given["answer"], ignore_eos=True, logprobs=2)
    prompts = [{"prompt_token_ids": ids} for ids in given["prompts"]]
    runs = [[answer(request.outputs[0]) for request in llm.generate(prompts, sampling, use_tqdm=False)] for _ in range(given["times"])]
    again = [[row["ids"] for row in rows] for rows in runs[1:]]  # may differ from the first after a near tie
    return {"answers": runs[0], "again": again, "spread": spread(runs), "counters": counters(llm), "ready_s": round(ready, 1)}


def counters(llm: Any) -> dict[str, Any]:
    """By name; labels are dropped, as there is one engine. Counts by position are a list."""
    found = {metric.name: getattr(metric, "value", None) or getattr(metric, "values", None) for metric in llm.get_metrics()}
    return {name: value for name, value in found.items() if value and re.search("spec_decode|_tokens$|prefix_cache_", name)}


def forget_accepted() -> None:
    """KDA keeps a state after each draft token, and the next step begins at the last accepted one's: always begin at the first."""
    import torch
    from vllm.models.glm5next.common import kda

    original = kda.fused_recurrent_kda

    def fused_recurrent_kda(*args: Any, **named: Any) -> Any:
        if named.get("num_accepted_tokens") is not None:
            named["num_accepted_tokens"] = torch.ones_like(named["num_accepted_tokens"])
        return original(*args, **named)

    kda.fused_recurrent_kda = fused_recurrent_kda


if __name__ == "__main__":
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    print(json.dumps(run(json.loads(sys.argv[1]))), flush=True)
