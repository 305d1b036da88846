"""Our own client as one more peer: `python -m bench.peers.ours`, a process of its own as the others are."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import lean
from bench.accuracy.truth import mean
from bench.measure import measure
from bench.peers.peer import Job, Peer, Reported
from bench.phases import text
from bench.request import Deadlines, Endpoint, Request
from bench.trace import Trace

_TASK = "Go on with the log."
_WORDS_PER_TOKEN = 0.7
Timed = tuple[int, Trace]  # CLOCK_MONOTONIC ns when its request was sent, and the trace


def _argv(job: Job) -> list[str]:
    return [
        sys.executable, "-m", "bench.peers.ours", "--base-url", job.base_url, "--model", job.model, "--streams", str(job.streams),
        "--requests", str(job.requests), "--tokens", str(job.tokens), "--prompt-tokens", str(job.prompt_tokens), "--dialect", job.dialect,
        "--out", str(job.folder / "out.json"),
    ]  # fmt: skip


def _read(job: Job, output: str) -> Reported:
    return Reported.model_validate_json((job.folder / "out.json").read_text())


PEER = Peer("spark-lab", "", _argv, _read)


def asked(model: str, requests: int, prompt_tokens: int, tokens: int) -> list[Request]:
    """As many requests of about so many tokens of text: no two alike, and none like an earlier run's, which a server may remember."""
    first = secrets.randbelow(10**9)
    words = round(prompt_tokens * _WORDS_PER_TOKEN) - len(text.compose(0, 1, _TASK).split())
    texts = [text.compose(first + number, max(1, words), _TASK) for number in range(requests)]
    return [Request(model, one, tokens, to_the_limit=True) for one in texts]


async def _all(endpoint: Endpoint, requests: Sequence[Request], streams: int) -> list[Timed]:
    """The requests by `streams` workers, each taking the next one when its last has ended."""
    found: list[Timed] = []
    todo = iter(requests)

    async def worker(todo: Iterator[Request]) -> None:
        for request in todo:
            begins: list[int] = []
            trace = await lean.stream(endpoint, request, Deadlines(), None, begins.append)
            found.append((begins[0] if begins else 0, trace))

    await asyncio.gather(*(worker(todo) for _ in range(streams)))
    return found


def reported(timed: list[Timed]) -> Reported:
    """Means over the requests. A count that the server does not state stays unknown, and so does every rate that needs it.

    Raises ValueError with the first error of a request that broke.
    """
    broken = next((trace.error for _, trace in timed if trace.error), None)
    if broken:
        raise ValueError(broken)
    each = [measure(trace) for _, trace in timed]
    counts = [one.n_tokens for one in each if one.n_tokens is not None]
    known = len(counts) == len(each)
    ends = [begin / 1e9 + one.e2el_s for (begin, _), one in zip(timed, each, strict=True) if one.e2el_s is not None]
    wall_s = max(ends) - min(begin for begin, _ in timed) / 1e9
    tpot = [one.tpot_s * 1000 for one in each if one.tpot_s is not None]
    return Reported(
        ttft_ms=mean([one.ttft_s * 1000 for one in each if one.ttft_s is not None]),
        tpot_ms=mean(tpot) if known else None,
        tokens=mean(counts) if known else None,
        decode_tok_s=mean([one.decode_tok_s for one in each if one.decode_tok_s is not None]) if known else None,
        output_tok_s=sum(counts) / wall_s if known else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.ours")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dialect", required=True, choices=["vllm", "llamacpp", "openai"])
    parser.add_argument("--out", type=Path, required=True)
    for name in ("--streams", "--requests", "--tokens", "--prompt-tokens"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    requests = asked(options.model, options.requests, options.prompt_tokens, options.tokens)
    timed = lean.run(_all(Endpoint(options.base_url, None, options.dialect), requests, options.streams))
    try:
        options.out.write_text(reported(timed).model_dump_json())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
