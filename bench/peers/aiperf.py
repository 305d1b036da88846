"""AIPerf (PyPI). With usage it is told to count as the server does, without usage it counts by its own tokenizer (its default).

It takes a local tokenizer only while not told to be offline; it downloads nothing.
"""

from __future__ import annotations

import json

from bench.peers.peer import Job, Peer, Reported


def _argv(job: Job) -> list[str]:
    counting = ["--use-server-token-count", "--per-chunk-usage"] if job.usage else []
    return [
        "aiperf", "profile", "--model", job.model, "--url", job.base_url, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", str(job.tokenizer), "--concurrency", str(job.streams), "--request-count", str(job.requests),
        "--isl", str(job.prompt_tokens), "--osl", str(job.tokens), "--extra-inputs", "ignore_eos:true",
        "--artifact-dir", str(job.folder), "--ui", "none", "--no-auto-plot",
        *counting,
    ]  # fmt: skip


def _read(job: Job, output: str) -> Reported:
    """Raises ValueError where a request failed: AIPerf then leaves it out of its means, and ends with 0 all the same."""
    said = json.loads((job.folder / "profile_export_aiperf.json").read_text())
    if failed := (said.get("error_request_count") or {}).get("avg"):
        details = [(one.get("error_details") or {}).get("message") for one in said.get("error_summary") or ()]
        raise ValueError(f"{failed:g} of {job.requests} requests failed: {'; '.join(map(str, details))[:200] or 'it does not say why'}")

    def mean(name: str) -> float | None:
        return (said.get(name) or {}).get("avg")

    return Reported(
        ttft_ms=mean("time_to_first_token"),
        tpot_ms=mean("inter_token_latency"),
        tokens=mean("output_sequence_length"),
        decode_tok_s=mean("output_token_throughput_per_user"),
        output_tok_s=mean("output_token_throughput"),
    )


PEER = Peer("aiperf", "aiperf", _argv, _read)
