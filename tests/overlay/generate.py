"""Real vLLM engines, one after the other in a process of its own: what each of two prompts makes it say.

    python -m tests.overlay.generate TENSOR_PARALLEL_SIZE MODEL...

The last line of the output that begins with [[ or [" is JSON, with one entry for each model: a list with, for each prompt, the greedy
token ids, and each one's log-probability with its lead over the second best; or the message of the error that stopped the engine's start.
"""

import contextlib
import gc
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
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: vLLM is imported once for all models of one rank
        "VLLM_CPU_OMP_THREADS_BIND": bind,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def main(ranks: int, folders: list[Path]) -> None:
    os.environ.update(engine_environment(ranks))
    print(json.dumps([answers(folder, ranks) for folder in folders]))


def answers(folder: Path, ranks: int) -> "list[dict[str, list[Any]]] | str":
    """What the engine says, or why it did not start. The engine is gone afterwards."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=2)
    try:
        llm = start(folder, ranks)
    except Exception as wrong:  # whatever vLLM makes of the plugin's error
        return f"{type(wrong).__name__}: {wrong}"
    try:
        done = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
        return [answer(request.outputs[0]) for request in done]
    finally:
        llm.llm_engine.engine_core.shutdown()
        gc.collect()


def start(folder: Path, ranks: int) -> Any:
    from vllm import LLM

    with contextlib.redirect_stdout(sys.stderr):
        return LLM(
            model=str(folder), tensor_parallel_size=ranks, dtype="float32", enforce_eager=True, max_model_len=128, max_num_seqs=4, seed=0
        )


def answer(output: Any) -> dict[str, list[Any]]:
    """`ids`, `logprobs`, `leads` of one completion."""
    best = [sorted((entry.logprob for entry in step.values()), reverse=True) for step in output.logprobs]
    return {"ids": list(output.token_ids), "logprobs": [row[0] for row in best], "leads": [row[0] - row[1] for row in best]}


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
