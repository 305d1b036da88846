"""The local kit as a server to measure: started for this run alone, and asked afterwards what it says that it served.

The truth here is the server's own log. It has a line with a clock when a request gets its slot, and when the request has ended the
number of its tokens and the time from the first to the last.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.peers.judged import Actual
from bench.scripted import ROOT

LANES = 2  # requests that the server decodes at the same time
_START_S, _CONVERT_S, _LOG_S = 180, 600, 2
_DOWN = ("-m", "invoke", "down", "--kit", "local")
_CLOCK = r"^(\d+)\.(\d+)\.(\d+)\.(\d+) I slot +"
_BEGUN = re.compile(_CLOCK + r"launch_slot_: id +\d+ \| task (\d+) \| processing task")
_PROMPT = re.compile(_CLOCK + r"print_timing: id +\d+ \| task (\d+) \| prompt eval time = +([\d.]+) ms / +(\d+) tokens")
_DECODED = re.compile(_CLOCK + r"print_timing: id +\d+ \| task (\d+) \| +eval time = +([\d.]+) ms / +(\d+) tokens")


@dataclass(frozen=True)
class Kit:
    """The running kit. tokenizer: folder of its model's tokenizer. engine: name and version, as recorded at its start."""

    base_url: str
    model: str
    engine: str
    log: Path
    tokenizer: Path

    def mark(self) -> int:
        """Where the log ends now, in bytes."""
        return self.log.stat().st_size

    def served(self, since: int, count: int) -> tuple[Served, ...]:
        """The last `count` requests of the log after that mark. A line may come a moment after the answer that it is about.

        Raises BenchError where there are not so many, with how many began.
        """
        deadline = time.monotonic() + _LOG_S
        while len(found := served(text := self._after(since))) < count:
            if time.monotonic() > deadline:
                began = sum(_BEGUN.match(line) is not None for line in text.splitlines())
                raise BenchError(f"the kit served {len(found)} whole requests of {count}, and {began} began")
            time.sleep(0.1)
        return found[-count:]

    def _after(self, since: int) -> str:
        with self.log.open("rb") as file:
            file.seek(since)
            return file.read().decode(errors="replace")


@dataclass(frozen=True)
class Served:
    """One whole request as the server's log states it; seconds of its clock. decode_s: from the first token to the last.
    prompt_tokens: those that it computed, not those that it found in its cache."""

    begun_s: float
    ended_s: float
    decode_s: float
    prompt_tokens: int
    tokens: int

    @property
    def ttft_s(self) -> float:
        """From getting its slot to its first token."""
        return self.ended_s - self.decode_s - self.begun_s


def served(log: str) -> tuple[Served, ...]:
    """The requests that both began and ended in this text and gave two tokens or more, by their begin.

    What ended early has no such lines, or one token at most: it is left out.
    """
    begun: dict[int, float] = {}
    prompts: dict[int, int] = {}
    found = []
    for line in log.splitlines():
        if match := _BEGUN.match(line):
            begun[int(match[5])] = _clock_s(match)
        elif match := _PROMPT.match(line):
            prompts[int(match[5])] = int(match[7])
        elif (match := _DECODED.match(line)) and (task := int(match[5])) in begun and task in prompts and int(match[7]) > 1:
            found.append(Served(begun[task], _clock_s(match), float(match[6]) / 1000, prompts[task], int(match[7])))
    return tuple(sorted(found, key=lambda one: one.begun_s))


def _clock_s(match: re.Match[str]) -> float:
    """Minutes, seconds, milliseconds and microseconds since the server's start."""
    return int(match[1]) * 60 + int(match[2]) + int(match[3]) / 1e3 + int(match[4]) / 1e6


def what_it_says(requests: Sequence[Served]) -> Actual:
    """The truth about these, in the words of a tool. The server decodes one token first, so that n tokens have n - 1 gaps; under
    speculation several come at once, and the time per token stays what it is. Raises ValueError for none."""
    if not requests:
        raise ValueError("the server's log has no whole request")
    count = len(requests)
    wall_s = max(one.ended_s for one in requests) - min(one.begun_s for one in requests)
    tpot_ms = sum(one.decode_s * 1000 / (one.tokens - 1) for one in requests) / count
    return Actual(
        ttft_ms=sum(one.ttft_s * 1000 for one in requests) / count,
        tpot_ms=tpot_ms,
        tpot_per_step_ms=tpot_ms,
        tokens=sum(one.tokens for one in requests) / count,
        decode_tok_s=sum((one.tokens - 1) / one.decode_s for one in requests) / count,
        output_tok_s=sum(one.tokens for one in requests) / wall_s,
    )


@contextmanager
def running() -> Iterator[Kit]:
    """The kit on a free port with its state in a folder of its own: one that already runs is neither used nor touched.

    Raises BenchError where it does not start, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="peers-kit-") as state:
        env = {**os.environ, "XDG_STATE_HOME": state, "PORT": str(_free_port()), "MAX_NUM_SEQS": str(LANES)}
        try:
            yield _started(env)
        except BaseException:
            with suppress(BenchError):  # what went wrong first is what the reader needs
                _said(_DOWN, env, _START_S)
            raise
        _said(_DOWN, env, _START_S)


def _started(env: dict[str, str]) -> Kit:
    record = json.loads(_said(["-m", "invoke", "up", "--kit", "local", "--json"], env, _START_S))
    gguf = record["argv"][record["argv"].index("--model") + 1]
    folder = _said(["-m", "cli.lab_env", "bench.kld.local", "--gguf", gguf, "--out", "none", "--convert-only"], env, _CONVERT_S)
    return Kit(record["base_url"], record["model"], record["engine"], Path(record["log"]), Path(folder.splitlines()[-1]))


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        port: int = sock.getsockname()[1]
        return port


def _said(words: Sequence[str], env: dict[str, str], limit_s: float) -> str:
    """What a Python program of ours printed on stdout. Raises BenchError with its last lines where it fails."""
    argv = [sys.executable, *words]
    try:
        ran = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the local kit: not done within {limit_s} s; ran: {' '.join(words)}\ntry: invoke doctor --kit local") from error
    if ran.returncode:
        tail = "\n".join(ran.stderr.splitlines()[-5:])
        raise BenchError(f"the local kit: exit status {ran.returncode}; ran: {' '.join(words)}\n{tail}\ntry: invoke doctor --kit local")
    return ran.stdout
