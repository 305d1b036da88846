"""One start of a kit, measured over HTTP: the panel's capture, the answers to the held-out prompts, the server's counters, its speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablit.classify import CLASSIFIERS
from ablit.prompts import Prompts
from ablit.served import ask
from ablit.served.ask import Said, Server
from ablit.served.facts import Boot, RankEdit, Speculation, Speed
from ablit.spec import Value
from bench import bench_decode
from bench.counters import Counters, delta
from bench.errors import BadRequest
from bench.kld import served as captures
from bench.receipt import System
from bench.request import INTERRUPTED
from bench.run import Options
from bench.server import read_counters, settled
from bench.stream import Endpoint

SPEED_TOKENS = 128
Say = Callable[[str], None]


@dataclass(frozen=True)
class Booted:
    """A kit that runs. `server`: where to ask; `boot`: the name of this start; `image`: identity of its container image; `system`: fields
    of bench.receipt.System; `edits`: what its ranks reported of an edit."""

    server: Server
    boot: str
    image: str | None
    system: Mapping[str, Any]
    edits: tuple[RankEdit, ...]


@dataclass(frozen=True)
class Asked:
    """What every point is asked. sides: held-out prompts; windows: KLD windows of each stratum, None for all; k: of the top-k form;
    speed_runs: measured requests of the phase prose, 0 for none."""

    sides: tuple[Prompts, ...]
    classifier: str
    reply_tokens: int
    windows: int | None
    k: int
    speed_runs: int

    def refuse_unknown(self) -> None:
        if self.classifier not in CLASSIFIERS:
            raise BadRequest(f"no classifier called {self.classifier}\ntry: {', '.join(CLASSIFIERS)}")


class Taken(Value):
    """What one start gave. `capture`: file name of its capture; `sides`: the answers, in the order of Asked.sides."""

    at: Boot
    image: str | None
    model: str
    capture: str
    sides: tuple[tuple[Said, ...], ...]


def take(booted: Booted, asked: Asked, folder: Path, say: Say) -> Taken:
    """Measure a kit that was just started; its capture and its performance receipt go into `folder`.

    Raises BadRequest, BenchError or InvalidMeasurement. KeyboardInterrupt passes through: the start is measured again then.
    """
    server, file = booted.server, f"{booted.boot}.npz"
    question = captures.Question(server.base_url, server.model, server.api_key, k=asked.k, edit=booted.boot, per_stratum=asked.windows)
    captures.capture(question, folder / "work" / file, say)
    endpoint = Endpoint(server.base_url, server.api_key, "vllm")
    before = asyncio.run(read_counters(endpoint))
    sides = tuple(ask.answers(server, side, asked.reply_tokens, asked.k, say) for side in asked.sides)
    own = sum(said.tokens for side in sides for said in side)
    after = asyncio.run(settled(endpoint, before, own))
    at = Boot(boot=booted.boot, speculation=speculation(before, after), speed=_speed(booted, asked, folder, say))
    return Taken(at=at, image=booted.image, model=server.model, capture=file, sides=sides)


def speculation(before: Counters | None, after: Counters | None) -> Speculation | None:
    """From two readings; None when the server has no such counters, or drafted nothing in between."""
    moved = delta(before, after)
    if not moved.drafts or moved.draft_tokens is None or moved.accepted_tokens is None:
        return None
    return Speculation(
        drafts=moved.drafts,
        draft_tokens=moved.draft_tokens,
        accepted_tokens=moved.accepted_tokens,
        accepted_per_position=moved.accepted_per_position or (),
    )


def _speed(booted: Booted, asked: Asked, folder: Path, say: Say) -> Speed | None:
    """A short prose phase by the benchmark itself, with a receipt of its own under speed/."""
    if not asked.speed_runs:
        return None
    options = Options(runs=asked.speed_runs, max_tokens=SPEED_TOKENS, coherence=False, arm=booted.boot)
    server, system = booted.server, System.model_validate(dict(booted.system))
    job = bench_decode.Job(server.base_url, ("prose",), server.model, server.api_key, folder / "speed", system, options)
    (written,) = bench_decode.bench(job, say)
    receipt = written.receipt
    if not receipt.runs or any(run.trace.error == INTERRUPTED for run in receipt.runs):
        raise KeyboardInterrupt  # the benchmark makes an invalid receipt of an interruption
    spread = receipt.summary.decode_tok_s
    if not receipt.valid or spread is None:
        say(f"no decode speed: {'; '.join(receipt.invalid_because) or 'no run gave one'}")
    return Speed(decode_tok_s=spread.median if receipt.valid and spread else None, receipt=receipt.id)
