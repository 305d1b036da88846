"""A receipt of two rounds of two lanes each, made by hand."""

from bench.counters import Counters
from bench.derive import derived
from bench.measure import measure
from bench.proofs import Health, Isolation
from bench.receipt import Payload, Run
from bench.rounds import Place, Round
from bench.trace import Trace, Usage
from tests.bench.samples import sample


def lane_run(index: int, round: int, lane: int, start_s: float, times: tuple[float, ...], role: str = "lane") -> Run:
    """A request with a token at each of `times` after it was sent, 20 prompt tokens, none cached."""
    trace = Trace(
        t_s=times,
        kinds="c" * len(times),
        tokens=tuple(range(1, len(times) + 1)),
        chunk_counts="usage",
        t_end_s=times[-1],
        usage=Usage(prompt_tokens=20, completion_tokens=len(times), cached_tokens=0),
        finish_reason="length",
        text="one two three",
    )
    return Run(
        index=index, prompt=f"p{lane}", salt=f"0000000{lane}", started_utc="2026-11-29T12:00:00.000+00:00", request_sha256="0" * 64,
        trace=trace, before=None, after=None, metrics=measure(trace),
        isolation=Isolation(idle=None, own_generation=None, own_prompt=None, held=None),
        health=Health(empty=False, nan=False, broken_utf8=False, loop=False),
        place=Place(role=role, lane=lane, round=round, start_s=start_s),
    )  # fmt: skip


def reading(tokens: int, prompt: int) -> Counters:
    return Counters(dialect="vllm", generation_tokens=tokens, prompt_tokens=prompt, running=0, waiting=0, preemptions=tokens // 4)


def grouped(scale: float = 1.0) -> Payload:
    """Round 0: A at 1, 2, 3, 4; B sent 0.5 late, at 2, 3, 4, 5. Round 1: both at 1, 2, 3, 5. All times x scale."""
    a, b, c = (1.0, 2.0, 3.0, 4.0), (1.5, 2.5, 3.5, 4.5), (1.0, 2.0, 3.0, 5.0)
    given = [(0, 0, 0.0, a), (0, 1, 0.5, b), (1, 0, 0.0, c), (1, 1, 0.0, c)]
    runs = tuple(
        lane_run(index, round, lane, start_s * scale, tuple(t * scale for t in times))
        for index, (round, lane, start_s, times) in enumerate(given)
    )
    rounds = tuple(Round(index=i, before=reading(8 * i, 40 * i), after=reading(8 * i + 8, 40 * i + 40), hygiene=None) for i in (0, 1))
    whole = sample()
    protocol = whole.protocol.model_copy(update={"concurrency": 2, "runs": 2, "prompts": whole.protocol.prompts * 2, "natural_end": False})
    return derived(whole.model_copy(update={"runs": runs, "rounds": rounds, "protocol": protocol}))
