"""GuideLLM (PyPI)."""

from __future__ import annotations

import json

from bench.peers.peer import OFFLINE, Job, Peer, Reported


def _argv(job: Job) -> list[str]:
    return [
        "guidellm", "run", "--backend", f"kind=openai_http,target={job.base_url},model={job.model}",
        "--profile", f"kind=concurrent,streams={job.streams}", "--constraint", f"kind=max_requests,count={job.requests}",
        "--tokenizer", f"kind=hf_auto,model={job.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={job.prompt_tokens},output_tokens={job.tokens}",
        "--output", f"kind=json,path={job.folder / 'out.json'}", "--disable-progress",
    ]  # fmt: skip


def _read(job: Job, output: str) -> Reported:
    """Its "inter token latency" is the time per token after the first; its "time per output token" holds the prompt too."""
    metrics = json.loads((job.folder / "out.json").read_text())["benchmarks"][0]["metrics"]

    def mean(name: str) -> float | None:
        said = (metrics[name] or {}).get("successful") or {}
        return said.get("mean") if said.get("count", 1) else None

    return Reported(
        ttft_ms=mean("time_to_first_token_ms"),
        tpot_ms=mean("inter_token_latency_ms"),
        tokens=mean("output_token_count"),
        output_tok_s=mean("output_tokens_per_second"),
    )


PEER = Peer("guidellm", "guidellm", _argv, _read, OFFLINE)
