"""Running one peer on one case, in a process whose CPU time is known."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.accuracy.measured import pinned
from bench.accuracy.truth import lateness_s, mean
from bench.errors import BenchError
from bench.peers.environments import program_folder, version
from bench.peers.judged import Verdict, judge, what_is_true
from bench.peers.kit import Kit, what_it_says
from bench.peers.peer import Job, Peer, Reported
from bench.peers.tokenizer import write
from bench.request import Dialect
from bench.scripted import ROOT, Script, ScriptedServer, UsageMode
from bench.trace import Fact

_LIMIT_S = 240
MODEL = "scripted"


@dataclass(frozen=True)
class Case:
    """What the scripted server does, and how much of it is asked for."""

    per_chunk: int
    usage: UsageMode
    streams: int = 2
    requests: int = 4
    tokens: int = 128
    gap_s: float = 0.02
    first_s: float = 0.2

    def script(self) -> Script:
        """per-chunk usage comes with token ids, as vLLM states both when asked for both."""
        return Script(self.tokens, self.per_chunk, self.gap_s, self.first_s, self.usage, token_ids=self.usage == "per-chunk")


@dataclass(frozen=True)
class Server:
    """Where to measure; tokenizer None: the small one of our own."""

    base_url: str
    model: str
    tokenizer: Path | None = None
    dialect: Dialect = "vllm"


class Row(Fact):
    """One peer on one case. failure: why there is no figure. cpu_s: CPU time of the tool and its children, from start to end.
    prompt_tokens: those that a server which says so has computed, per request."""

    peer: str
    version: str
    command: str
    per_chunk: int
    usage: UsageMode
    streams: int
    requests: int
    tokens: int
    verdicts: tuple[Verdict, ...] = ()
    said: Reported | None = None
    cpu_s: float | None = None
    wall_s: float | None = None
    server_late_p99_s: float | None = None
    prompt_tokens: float | None = None
    failure: str | None = None


class Ran(Fact):
    """A finished tool: CPU and wall seconds, what it printed, and why it failed (None: it did not)."""

    cpu_s: float
    wall_s: float
    output: str
    failure: str | None


def row(peer: Peer, case: Case) -> Row:
    """Never raises for a fault of the peer: a failure is a result, and is kept."""
    cores = sorted(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="peer-") as name,
        ScriptedServer(case.script(), cores[-1] if len(cores) > 1 else None) as server,
    ):
        job = _job(Path(name), Server(server.base_url, MODEL), case)
        with pinned(cores[0] if len(cores) == 2 else None):
            ran, said = _measured(peer, job)
        sents = [sent for sent in server.chats() if sent.outcome == "complete" and sent.chunks][-case.requests :]
    if said and len(sents) < case.requests:
        ran, said = ran.model_copy(update={"failure": f"the server saw {len(sents)} whole requests of {case.requests}"}), None
    found = _row(peer, case, job, ran, said)
    verdicts = judge(said, what_is_true(sents)) if said else ()
    return found.model_copy(update={"verdicts": verdicts, "server_late_p99_s": lateness_s(sents)[0]})


def live(peer: Peer, case: Case, server: Server) -> Row:
    """The same on a real server of which no truth is known; `case` says only how much to ask for."""
    with tempfile.TemporaryDirectory(prefix="peer-") as name:
        job = _job(Path(name), server, case)
        return _row(peer, case, job, *_measured(peer, job))


def on_kit(peer: Peer, case: Case, kit: Kit) -> Row:
    """On the local kit, held against what the kit's server says of the last requests that it served: a tool may send some of its own
    before it measures."""
    since = kit.mark()
    found = live(peer, case, Server(kit.base_url, kit.model, kit.tokenizer, "llamacpp"))
    if found.said is None:
        return found
    try:
        requests = kit.served(since, case.requests)
    except BenchError as error:
        return found.model_copy(update={"said": None, "failure": str(error)})
    prompt_tokens = mean([one.prompt_tokens for one in requests])
    verdicts = [_with_waiting(one, case) for one in judge(found.said, what_it_says(requests))]
    return found.model_copy(update={"verdicts": tuple(verdicts), "prompt_tokens": prompt_tokens})


def _with_waiting(one: Verdict, case: Case) -> Verdict:
    """The kit's log begins when a request gets its slot. Beside another stream it may wait for that until a batch has ended, of which the
    log does not tell: a longer TTFT is then not wrong, a shorter one is."""
    if one.figure == "ttft_ms" and case.streams > 1 and (one.error or 0) > 0:
        return one.model_copy(update={"wrong": False})
    return one


def _job(folder: Path, server: Server, case: Case) -> Job:
    out = folder / "out"
    out.mkdir()
    words = server.tokenizer or write(folder / "tokenizer")
    usage = case.usage != "none"
    return Job(server.base_url, server.model, words, out, case.streams, case.requests, case.tokens, usage, server.dialect)


def _row(peer: Peer, case: Case, job: Job, ran: Ran, said: Reported | None) -> Row:
    return Row(
        peer=peer.name,
        version=version(peer),
        command=_shown(peer, job),
        per_chunk=case.per_chunk,
        usage=case.usage,
        streams=case.streams,
        requests=case.requests,
        tokens=case.tokens,
        said=said,
        cpu_s=round(ran.cpu_s, 3),
        wall_s=round(ran.wall_s, 2),
        failure=ran.failure,
    )


def _shown(peer: Peer, job: Job) -> str:
    """The command with the folders of the moment taken out."""
    words = [Path(word).name if word.startswith("/") and "python" in word else word for word in peer.argv(job)]
    places = {str(job.folder.parent): "TMP", str(job.tokenizer): "TOKENIZER", job.base_url: "URL"}
    return functools.reduce(lambda text, place: text.replace(*place), places.items(), " ".join(words))


def _measured(peer: Peer, job: Job) -> tuple[Ran, Reported | None]:
    try:
        folder = program_folder(peer)
    except BenchError as error:
        return Ran(cpu_s=0.0, wall_s=0.0, output="", failure=str(error)), None
    peer.prepare(job)
    ran = run(peer, job, folder)
    if ran.failure:
        return ran, None
    try:
        return ran, peer.read(job, ran.output)
    except (OSError, ValueError, LookupError, TypeError) as error:
        tail = " / ".join(ran.output.splitlines()[-3:])[-300:]
        return ran.model_copy(update={"failure": f"its result is not to be read: {type(error).__name__}: {error}; it said: {tail}"}), None


def run(peer: Peer, job: Job, folder: Path | None) -> Ran:
    """Run the tool in the job's folder as its home, so that nothing of the user's is read or written."""
    words = peer.argv(job)
    argv = [str(folder / words[0]), *words[1:]] if folder else words
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
    env = kept | {"HOME": str(job.folder), "PYTHONPATH": "" if folder else str(ROOT), "NO_COLOR": "1"} | peer.env
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    failure = None
    with (job.folder / "output.txt").open("w+") as output:
        child = subprocess.Popen(argv, cwd=job.folder, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            child.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            failure = f"not done within {_LIMIT_S} s"
    said = (job.folder / "output.txt").read_text(errors="replace")
    if child.returncode and not failure:
        failure = f"exit status {child.returncode}; it said: {' / '.join(said.splitlines()[-3:])[-300:]}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(cpu_s=cpu_s, wall_s=time.monotonic() - began, output=said, failure=failure)
