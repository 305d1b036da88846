"""What a peer is: how it is called, and what it says. Values, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.request import Dialect
from bench.trace import Fact


class Reported(Fact):
    """What a tool reports of one run, in our words; None: it reports no such figure.

    ttft_ms: mean time to first token. tpot_ms: mean time per output token after the first, by whatever name. tokens: output tokens
    per request. decode_tok_s: mean rate of one request after its first token. output_tok_s: all tokens over the wall time.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens: float | None = None
    decode_tok_s: float | None = None
    output_tok_s: float | None = None


@dataclass(frozen=True)
class Job:
    """What to measure: `requests` of `tokens` output tokens each, `streams` at a time. usage: whether the server states token
    counts at all, so that a tool which has a mode for either is given the right one. dialect: of the server, for
    ours. folder: empty, for whatever the tool writes."""

    base_url: str
    model: str
    tokenizer: Path
    folder: Path
    streams: int
    requests: int
    tokens: int
    usage: bool = True
    dialect: Dialect = "vllm"
    prompt_tokens: int = 64


@dataclass(frozen=True)
class Peer:
    """One tool. package: its name on PyPI, "" if it has no environment of its own. argv: the command, of which the first word is a
    program of its environment. read: what it reported, from the files and the output that it left in the folder."""

    name: str
    package: str
    argv: Callable[[Job], list[str]]
    read: Callable[[Job, str], Reported]
    env: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Job], None] = lambda job: None


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
