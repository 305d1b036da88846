"""llama-benchy (PyPI). It times the prompt from a book's text; the book is put into its cache, so nothing is downloaded."""

from __future__ import annotations

import hashlib
import json

from bench.peers.peer import OFFLINE, Job, Peer, Reported
from bench.peers.tokenizer import text

_BOOK = "book://own-words"


def _argv(job: Job) -> list[str]:
    return [
        "llama-benchy", "--base-url", f"{job.base_url}/v1", "--model", job.model, "--tokenizer", str(job.tokenizer),
        "--pp", str(job.prompt_tokens), "--tg", str(job.tokens), "--exact-tg",
        "--runs", str(job.requests // job.streams), "--concurrency", str(job.streams),
        "--no-warmup", "--skip-coherence", "--no-adapt-prompt", "--latency-mode", "none", "--book-url", _BOOK,
        "--save-result", str(job.folder / "out.json"), "--format", "json",
    ]  # fmt: skip


def _prepare(job: Job) -> None:
    cache = job.folder / ".cache" / "llama-benchy"
    cache.mkdir(parents=True)
    (cache / f"{hashlib.md5(_BOOK.encode()).hexdigest()}.txt").write_text(text(20_000))


def _read(job: Job, output: str) -> Reported:
    """It reports no time per token, no token count, and no throughput over the wall time: its total generation rate leaves the
    time to the first token out."""
    row = json.loads((job.folder / "out.json").read_text())["benchmarks"][0]
    return Reported(
        ttft_ms=row["e2e_ttft"]["mean"],
        decode_tok_s=row["tg_req_throughput"]["mean"],
    )


PEER = Peer("llama-benchy", "llama-benchy", _argv, _read, OFFLINE, _prepare)
