"""The true figures of one or many streams, from what the server sent and when. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bench.measure import quantile
from bench.scripted import Sent
from bench.trace import Fact

QUANTILES = (0.5, 0.9, 0.99)


class Truth(Fact):
    """One stream: seconds, tokens, tokens per second, by the definitions of bench.measure. ttft_s: from when the request had come to
    the server's machine, by the kernel's stamp, so that a request which the server read late has waited for its token. gaps_s: between
    chunks that held tokens."""

    n_tokens: int
    first_chunk_tokens: int
    ttft_s: float
    tpot_s: float | None
    decode_tok_s: float | None
    gaps_s: tuple[float, ...]


class Group(Fact):
    """Many streams together. output_tok_s: all tokens over the time from the first request's arrival to the last token's send."""

    streams: int
    n_tokens: int
    ttft_mean_s: float
    tpot_mean_s: float | None
    itl_mean_s: float | None
    decode_tok_s: float | None
    output_tok_s: float


def truth(sent: Sent) -> Truth:
    """Raises ValueError where no token was sent."""
    if not sent.chunks:
        raise ValueError("the server sent no token")
    (first_ns, _, first_n), (last_ns, _, n) = sent.chunks[0], sent.chunks[-1]
    span_s = (last_ns - first_ns) / 1e9
    times = [at_ns for at_ns, _, _ in sent.chunks]
    return Truth(
        n_tokens=n,
        first_chunk_tokens=first_n,
        ttft_s=(first_ns - sent.asked_ns) / 1e9,
        tpot_s=span_s / (n - 1) if n > 1 else None,
        decode_tok_s=(n - first_n) / span_s if span_s else None,
        gaps_s=tuple([(later - earlier) / 1e9 for earlier, later in itertools.pairwise(times)]),
    )


def group(sents: Sequence[Sent]) -> Group:
    """The true figures of all streams of one run; decode_tok_s is the mean over streams."""
    each = [truth(sent) for sent in sents]
    tokens = sum(one.n_tokens for one in each)
    wall_ns = max(sent.chunks[-1][0] for sent in sents) - min(sent.asked_ns for sent in sents)
    return Group(
        streams=len(each),
        n_tokens=tokens,
        ttft_mean_s=sum(one.ttft_s for one in each) / len(each),
        tpot_mean_s=mean([one.tpot_s for one in each if one.tpot_s is not None]),
        itl_mean_s=mean([gap for one in each for gap in one.gaps_s]),
        decode_tok_s=mean([one.decode_tok_s for one in each if one.decode_tok_s is not None]),
        output_tok_s=tokens / (wall_ns / 1e9),
    )


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def lateness_s(sents: Sequence[Sent]) -> tuple[float | None, float | None]:
    """How late the server sent its chunks: p99 and longest. A late server is no fault of a client: the log says when it really sent."""
    late = [(at_ns - due_ns) / 1e9 for sent in sents for at_ns, due_ns, _ in sent.chunks]
    return quantile(late, 0.99), max(late, default=None)
