"""One real vLLM engine in a process of its own; the last line of its output that begins with "[" is JSON: for each of two prompts
the greedy token ids, and each one's log-probability with its lead over the second best.

    python -m tests.overlay.generate MODEL [TENSOR_PARALLEL_SIZE] [ENGINE_ARGUMENTS_AS_JSON]
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

PROMPTS = ([7, 101, 33, 250, 12, 400], list(range(300, 340)))


def engine_environment(ranks: int) -> dict[str, str]:
    """What the CPU engine needs; the plugin is found by its entry point, as in production."""
    cores = sorted(os.sched_getaffinity(0))
    bind = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def main(folder: Path, ranks: int, extra: dict[str, object]) -> None:
    os.environ.update(engine_environment(ranks))
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(folder),
        tensor_parallel_size=ranks,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        seed=0,
        **extra,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=2)
    done = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling)
    print(json.dumps([answer(request.outputs[0]) for request in done]))


def answer(output: Any) -> dict[str, list[Any]]:
    """`ids`, `logprobs`, `leads` of one completion."""
    best = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in output.logprobs]
    return {"ids": list(output.token_ids), "logprobs": [row[0] for row in best], "leads": [row[0] - row[1] for row in best]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
