"""Metrics of hand-made traces. Every expected number was worked out by hand."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from bench.measure import measure, quantile
from bench.trace import Trace, Usage


def trace(*chunks: tuple[float, str, int | None], counts: Any = None, usage: Usage | None = None, error: str | None = None) -> Trace:
    return Trace(
        t_s=tuple(t for t, _, _ in chunks),
        kinds="".join(kind for _, kind, _ in chunks),
        tokens=tuple(n for _, _, n in chunks),
        chunk_counts=counts,
        t_end_s=chunks[-1][0] if chunks else 1.0,
        usage=usage,
        finish_reason=None if error else "length",
        error=error,
    )


USAGE_9 = Usage(prompt_tokens=20, completion_tokens=9, cached_tokens=4)


@dataclass(frozen=True)
class Case:
    name: str
    trace: Trace
    expect: dict[str, Any]


CASES = [
    Case(
        # 3 + 4 + 2 tokens in three chunks: (9 - 3) tokens in 0.4 s; (0.9 - 0.5) / 8 per token
        "multi-token chunks counted per chunk",
        trace((0.5, "c", 3), (0.7, "c", 7), (0.9, "c", 9), (0.95, "f", 9), (1.0, "u", None), counts="usage", usage=USAGE_9),
        {
            "n_tokens": 9, "token_source": "chunk_usage", "first_chunk_tokens": 3, "ttft_s": 0.5, "e2el_s": 0.9,
            "decode_tok_s": 15.0, "tpot_s": 0.05, "tokens_per_chunk": 3.0, "itl_p50_s": 0.2, "prefill_tok_s": 32.0,
        },
    ),
    Case(
        # the same chunks without counts: the first may hold 1 to 7 of the 9 tokens, so 8 to 2 came in the 0.4 s after it
        "final usage only, several tokens per chunk: no rate",
        trace((0.5, "c", None), (0.7, "c", None), (0.9, "c", None), (1.0, "u", None), usage=USAGE_9),
        {"n_tokens": 9, "token_source": "final_usage", "first_chunk_tokens": None, "decode_tok_s": None, "tpot_s": 0.05},
    ),
    Case(
        # three tokens in three chunks: the first holds one
        "final usage only, a token per chunk",
        trace((0.5, "c", None), (0.7, "c", None), (0.9, "c", None), usage=Usage(completion_tokens=3)),
        {"n_tokens": 3, "token_source": "final_usage", "decode_tok_s": 5.0},
    ),
    Case(
        # 102 tokens in 101 chunks: the first holds one or two, so 101 or 100 came in the 1 s after it
        "final usage only, one chunk of two tokens",
        trace(*((0.01 * at, "c", None) for at in range(50, 151)), usage=Usage(completion_tokens=102)),
        {"decode_tok_s": 101.0},
    ),
    Case(
        "final usage only, three more tokens than chunks: off by more than 1 %",
        trace(*((0.01 * at, "c", None) for at in range(50, 151)), usage=Usage(completion_tokens=104)),
        {"decode_tok_s": None},
    ),
    Case(
        "role-only first chunk is no token",
        trace((0.1, "r", 0), (0.6, "c", 1), (0.7, "c", 2), counts="usage", usage=Usage(completion_tokens=2)),
        {"ttfr_s": 0.1, "ttft_s": 0.6, "n_tokens": 2, "decode_tok_s": 10.0, "tpot_s": 0.1, "prefill_tok_s": None},
    ),
    Case(
        # the first token is half a character: its chunk has no text, but the count says it is there; the last is end-of-text
        "tokens without text count where the server states them",
        trace((0.1, "r", 0), (0.5, "e", 1), (0.6, "c", 2), (0.7, "e", 2), (1.0, "f", 3), counts="usage", usage=Usage(completion_tokens=3)),
        {"ttft_s": 0.5, "e2el_s": 1.0, "decode_tok_s": 4.0, "tpot_s": 0.25, "n_tokens": 3},
    ),
    Case(
        # reasoning holds tokens: TTFT is its first chunk; 4 tokens after the first in 0.8 s
        "reasoning, then content",
        trace((0.2, "k", 1), (0.6, "k", 3), (1.0, "c", 5), counts="token_ids", usage=Usage(completion_tokens=5, reasoning_tokens=3)),
        {"ttft_s": 0.2, "e2el_s": 1.0, "decode_tok_s": 5.0, "token_source": "token_ids", "itl_p50_s": 0.4, "itl_max_s": 0.4},
    ),
    Case(
        "tool call deltas hold tokens",
        trace((0.2, "t", 2), (0.4, "t", 6), counts="usage", usage=Usage(completion_tokens=6)),
        {"ttft_s": 0.2, "decode_tok_s": 20.0},
    ),
    Case(
        "final usage in a chunk without choices does not end the answer later",
        trace((0.5, "c", 1), (0.6, "c", 2), (5.0, "u", None), counts="timings", usage=Usage(completion_tokens=2)),
        {"e2el_s": 0.6, "decode_tok_s": 10.0, "token_source": "chunk_timings"},
    ),
    Case(
        # the end-of-text token is in the final usage but in no chunk: the rate counts what was seen
        "final usage holds one token more than the chunks",
        trace((0.5, "c", 1), (0.6, "c", 2), (0.6, "f", None), counts="timings", usage=Usage(completion_tokens=3)),
        {"n_tokens": 3, "decode_tok_s": 10.0, "tpot_s": 0.05},
    ),
    Case(
        "no usage at all: nothing is guessed from the number of chunks",
        trace((0.5, "c", None), (0.6, "c", None), (0.7, "c", None)),
        {"n_tokens": None, "token_source": None, "decode_tok_s": None, "tpot_s": None, "tokens_per_chunk": None, "ttft_s": 0.5},
    ),
    Case(
        "one-token answer has no rate",
        trace((0.5, "c", 1), (0.5, "f", None), counts="usage", usage=Usage(prompt_tokens=7, completion_tokens=1)),
        {"n_tokens": 1, "ttft_s": 0.5, "e2el_s": 0.5, "decode_tok_s": None, "tpot_s": None, "itl_p50_s": None},
    ),
    Case(
        "all tokens in one chunk have no rate either",
        trace((0.5, "c", 8), counts="usage", usage=Usage(completion_tokens=8)),
        {"n_tokens": 8, "first_chunk_tokens": 8, "decode_tok_s": None, "tpot_s": None},
    ),
    Case(
        "error mid-stream keeps what the chunks prove",
        trace((0.5, "c", 1), (0.7, "c", 3), counts="usage", error="broken off"),
        {"n_tokens": 3, "decode_tok_s": 10.0, "ttft_s": 0.5},
    ),
    Case(
        "one chunk that states nothing makes chunk counts unusable",
        trace((0.5, "c", 1), (0.6, "c", None), (0.9, "c", 5), counts="usage", usage=Usage(completion_tokens=5)),
        {"token_source": "final_usage", "decode_tok_s": None},
    ),
    Case(
        # 950 tokens of hidden reasoning, then 3 of answer in 1 s; dividing all 953 by that second would give 952 tok/s
        "reasoning that is counted but not streamed is in no rate",
        trace((30.0, "c", None), (30.5, "c", None), (31.0, "c", None), usage=Usage(completion_tokens=953, reasoning_tokens=950)),
        {"n_tokens": 953, "decode_tok_s": 2.0, "tpot_s": 0.5, "tokens_per_chunk": 1.0, "ttft_s": 30.0},
    ),
    Case(
        "the same with counts in the chunks",
        trace((30.0, "c", 951), (31.0, "c", 1001), counts="usage", usage=Usage(completion_tokens=1001, reasoning_tokens=950)),
        {"decode_tok_s": 50.0, "tpot_s": 0.02},
    ),
    Case("nothing came", trace(error="HTTP 500"), {"ttfr_s": None, "ttft_s": None, "n_tokens": None, "itl_p99_s": None}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_by_hand(case: Case) -> None:
    found = measure(case.trace).model_dump()
    for name, value in case.expect.items():
        assert found[name] == (value if value is None or isinstance(value, str) else pytest.approx(value, rel=1e-9)), name


@pytest.mark.parametrize(("q", "value"), [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0)])
def test_quantile_interpolates_like_numpy(q: float, value: float) -> None:
    found = quantile([4.0, 1.0, 3.0, 2.0], q)
    assert found is not None
    assert math.isclose(found, value)


def test_quantile_of_nothing_is_unknown() -> None:
    assert quantile([], 0.5) is None


def test_trace_refuses_columns_of_unequal_length() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Trace(t_s=(0.1, 0.2), kinds="c", tokens=(1,), t_end_s=1.0)


def test_trace_refuses_time_that_goes_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        Trace(t_s=(0.2, 0.1), kinds="cc", tokens=(1, 2), t_end_s=1.0)
