"""A small receipt made by hand, for tests."""

from bench.counters import Counters
from bench.derive import derived
from bench.measure import measure
from bench.proofs import Health, Isolation, ProbeResult
from bench.receipt import Payload, Protocol, Run, Sent, System, Tool
from bench.summarize import summarize
from bench.trace import Trace, Usage


def run(index: int, decode_tok_s: float = 50.0, error: str | None = None, tokens: int = 11) -> Run:
    """A run of `tokens` one-token chunks after a TTFT of 0.2 s; its counters moved by exactly its tokens."""
    times = tuple(round(0.2 + i / decode_tok_s, 6) for i in range(tokens))
    trace = Trace(
        t_s=times,
        kinds="c" * tokens,
        tokens=tuple(range(1, tokens + 1)),
        chunk_counts="usage",
        t_end_s=times[-1],
        usage=Usage(prompt_tokens=20, completion_tokens=tokens, cached_tokens=0),
        finish_reason=None if error else "length",
        text="one two three",
        error=error,
    )
    before = Counters(
        dialect="vllm",
        generation_tokens=0,
        prompt_tokens=0,
        running=0,
        waiting=0,
        drafts=0,
        draft_tokens=0,
        accepted_tokens=0,
        accepted_per_position=(0, 0),
    )
    after = before.model_copy(
        update={
            "generation_tokens": tokens,
            "prompt_tokens": 20,
            "drafts": 4,
            "draft_tokens": 8,
            "accepted_tokens": 6,
            "accepted_per_position": (4, 2),
        }
    )
    return Run(
        index=index, prompt="p", salt=None, started_utc="2026-11-29T12:00:00.000+00:00", request_sha256="0" * 64, trace=trace,
        before=before, after=after, metrics=measure(trace), isolation=Isolation(idle=None, own_generation=None, own_prompt=None, held=None),
        health=Health(empty=False, nan=False, broken_utf8=False, loop=False),
    )  # fmt: skip


def sample(*runs: Run, arm: str = "default", phase: str = "prose", kit: str | None = "local") -> Payload:
    """A derived payload of the given runs (default: two, at 40 and 50 tok/s)."""
    runs = runs or (run(0, 40.0), run(1, 50.0))
    return derived(
        Payload(
            id="0123456789ab", created_utc="2026-11-29T12:00:00+00:00", arm=arm, model="test|model", valid=False, invalid_because=(),
            failed_gates=(), notes=(),
            tool=Tool(name="spark-lab", version="0", git_commit=None, git_dirty=None, bench_sha256="0" * 64, client="openai 0", python="3"),
            system=System(kit=kit),
            protocol=Protocol(
                phase=phase, prompts=(Sent(id="p", sha256="0" * 64),), runs=len(runs), max_tokens=11, temperature=0.0, top_p=1.0,
                thinking=False, salted=False, warm_up="w", concurrency=1, dialect="vllm",
            ),
            runs=runs, coherence=(ProbeResult(id="capital", text="Paris.", passed=True),), summary=summarize([], 0, []),
        )
    )  # fmt: skip
