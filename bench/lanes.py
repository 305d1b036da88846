"""Sending the measured requests of one phase, alone or several at a time, and keeping what happened as Runs and Rounds."""

from __future__ import annotations

import asyncio
import datetime
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.hygiene import Limits, Watch
from bench.measure import measure
from bench.proofs import Health, Isolation
from bench.receipt import Run
from bench.rounds import Place, Round
from bench.server import read_counters, settled
from bench.stream import Deadlines, Endpoint, Listener, Request, stream
from bench.trace import Trace

Report = Callable[[str], None]
LIMITS = Limits()
_UNKNOWN = Isolation(idle=None, own_generation=None, own_prompt=None, held=None)
_UNCHECKED = Health(empty=False, nan=False, broken_utf8=False, loop=False)


class Broken(Exception):
    """A request failed or Ctrl-C came: the phase ends, and what there is becomes its receipt."""


@dataclass(frozen=True)
class Shot:
    """One request to be sent. content: the text, or the messages of a conversation so far."""

    prompt: str
    content: str | Sequence[dict[str, str]]
    max_tokens: int
    role: str = "lane"
    lane: int = 0
    salt: str | None = None
    due_s: float | None = None
    target_tokens: int | None = None


@dataclass(frozen=True)
class Conversation(Request):
    """A request of several messages; `content` holds them."""

    def body(self, dialect: Any) -> dict[str, Any]:
        return {**super().body(dialect), "messages": list(self.content)}


@dataclass(frozen=True)
class _Sent:
    """A request on its round's clock, before its counters are known."""

    shot: Shot
    request: Request
    trace: Trace
    start_s: float
    started_utc: str


@dataclass
class Session:
    """The measured requests of one phase so far. Used by one event loop. to_the_limit: no answer may end by itself (see Request)."""

    endpoint: Endpoint
    model: str
    deadlines: Deadlines
    report: Report
    to_the_limit: bool = False
    runs: list[Run] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    def request(self, shot: Shot) -> Request:
        kind = Request if isinstance(shot.content, str) else Conversation
        return kind(self.model, shot.content, shot.max_tokens, to_the_limit=self.to_the_limit)

    async def alone(self, shot: Shot) -> Run:
        """Send one request between two counter readings. Raises Broken after keeping a run that failed."""
        before = await read_counters(self.endpoint)
        with Watch(LIMITS) as watch:
            sent = await _send(self, shot, time.monotonic_ns(), None)
        run = self._run(sent, None)
        after = await settled(self.endpoint, before, run.metrics.n_tokens)
        self.runs.append(run.model_copy(update={"before": before, "after": after, "hygiene": watch.report()}))
        if sent.trace.error:
            raise Broken(sent.trace.error)
        return self.runs[-1]

    async def together(self, *lanes: Lane) -> list[Run]:
        """Start all lanes at once and wait for all. Raises Broken after keeping the round if any request failed."""
        index, before = len(self.rounds), await read_counters(self.endpoint)
        with Watch(LIMITS) as watch:
            stage = Stage(self, time.monotonic_ns())
            interrupted = await _all([asyncio.ensure_future(lane(stage)) for lane in lanes])
        sent = sorted(stage.sent, key=lambda one: one.start_s)
        counts = [measure(one.trace).n_tokens for one in sent]
        after = await settled(self.endpoint, before, None if None in counts else sum(n or 0 for n in counts))
        self.rounds.append(Round(index=index, before=before, after=after, hygiene=watch.report()))
        first = len(self.runs)
        for one in sent:
            self.runs.append(self._run(one, index))
        if interrupted or any(one.trace.error for one in sent):
            raise Broken("a lane failed")
        return self.runs[first:]

    def _run(self, sent: _Sent, round: int | None) -> Run:
        shot = sent.shot
        return Run(
            index=len(self.runs),
            prompt=shot.prompt,
            salt=shot.salt,
            started_utc=sent.started_utc,
            request_sha256=sent.request.sha256(self.endpoint.dialect),
            trace=sent.trace,
            before=None,
            after=None,
            metrics=measure(sent.trace),
            isolation=_UNKNOWN,
            health=_UNCHECKED,
            place=Place(
                role=shot.role,
                lane=shot.lane,
                round=round,
                start_s=0.0 if round is None else sent.start_s,
                due_s=shot.due_s,
                target_tokens=shot.target_tokens,
            ),
        )


@dataclass
class Stage:
    """What the lanes of one round share: the clock, and the list of what was sent."""

    session: Session
    begin_ns: int
    sent: list[_Sent] = field(default_factory=list)

    def now_s(self) -> float:
        """Seconds since the round began."""
        return (time.monotonic_ns() - self.begin_ns) / 1e9

    async def send(self, shot: Shot, listen: Listener | None = None) -> Trace:
        """Send one request of a lane. Raises Broken, which ends that lane only, when it failed."""
        one = await _send(self.session, shot, self.begin_ns, listen)
        self.sent.append(one)
        if one.trace.error:
            raise Broken(one.trace.error)
        return one.trace


Lane = Callable[[Stage], Awaitable[None]]


async def _send(session: Session, shot: Shot, begin_ns: int, listen: Listener | None) -> _Sent:
    request = session.request(shot)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    starts: list[int] = []
    trace = await stream(session.endpoint, request, session.deadlines, listen, starts.append)
    # A request that never got a connection has no start of its own: it is placed where its trace ends.
    start_s = (starts[0] if starts else time.monotonic_ns()) - begin_ns
    return _Sent(shot, request, trace, round(start_s / 1e9, 6), started)


async def _all(tasks: Sequence[asyncio.Future[None]]) -> bool:
    """Wait for all tasks, of which a failed request ends only its own. True: Ctrl-C came, all were told to end, and have."""
    interrupted = False
    while True:
        try:
            await asyncio.wait(tasks)
            break
        except asyncio.CancelledError:
            interrupted = True
            task = asyncio.current_task()
            if task:
                task.uncancel()
            for each in tasks:
                each.cancel()
    for each in tasks:
        error = None if each.cancelled() else each.exception()
        if error is not None and not isinstance(error, Broken):
            raise error
    return interrupted


def fresh_salt() -> str:
    """Eight random hex digits: put before a prompt, they keep it out of every prefix cache."""
    return secrets.token_hex(4)
