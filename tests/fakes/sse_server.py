"""A scripted OpenAI-compatible streaming server in its own process: the ground truth for testing a benchmark client.

    with ScriptedServer(Scenario([Reply(uniform(200, gap_s=0.01))])) as server:
        ... use server.base_url ...
        server.sent()       # what really left, and when (CLOCK_MONOTONIC, shared by all processes of the machine)

By hand: `python -m tests.fakes.sse_server --scenario FILE.json --port 0 --log DIR` prints `listening PORT`.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.fakes import codec, records
from tests.fakes.link import Link
from tests.fakes.records import EndRecord, Log, RequestRecord, SendRecord
from tests.fakes.script import Scenario
from tests.fakes.server import Server
from tests.fakes.stamping import Listener

ROOT = Path(__file__).parents[2]
START_S = 20.0
ANSWER_S = 10.0
T = TypeVar("T", RequestRecord, SendRecord, EndRecord)


class ScriptedServer:
    """Runs the scenario in a child process, which also ends when this process does, however that ends.

    Raises RuntimeError (with the child's stderr) if the child does not start, or on leaving the `with` block if it
    failed on its own. The records stay readable after `stop` and `kill`.
    """

    def __init__(self, scenario: Scenario, port: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scripted-server-")
        self._path = Path(self._folder.name)
        self._kept: dict[type[object], list[object]] = {}
        self._lock = threading.Lock()
        file = self._path / "scenario.json"
        file.write_text(codec.to_json(scenario), encoding="utf-8")
        argv = [sys.executable, "-m", "tests.fakes.sse_server", "--scenario", str(file), "--port", str(port)]
        argv += ["--log", str(self._path), "--until-stdin-closes"]
        with (self._path / "stderr").open("wb") as stderr:
            self._child = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self.port = self._first_line()
        self.base_url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid

    def requests(self) -> list[RequestRecord]:
        """All requests so far, in order of arrival; `index` is the place in this list."""
        return self._read(RequestRecord)

    def sent(self) -> list[SendRecord]:
        """Everything sent so far in replies to POST /v1/chat/completions. Holds all that the caller has received."""
        return self._read(SendRecord)

    def ended(self) -> list[EndRecord]:
        """The chat requests that ended so far."""
        return self._read(EndRecord)

    def stop(self) -> None:
        """End the child in an orderly way: running replies are cut by a close, their end is recorded as stopped."""
        if self._child.poll() is None and self._child.stdin:
            self._child.stdin.close()
            try:
                self._child.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._gather()

    def kill(self) -> None:
        """SIGKILL, once all that was sent by now is recorded: what a crashed server looks like."""
        self._sync()
        self._child.kill()
        self._gather()

    def __enter__(self) -> "ScriptedServer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()
        if error is None and self._child.returncode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"scripted server: exit status {self._child.returncode}\n{self._stderr}")

    def _read(self, cls: type[T]) -> list[T]:
        if cls in self._kept:
            return list(self._kept[cls])  # type: ignore[arg-type]
        self._sync()
        return list(records.read(self._path, cls))

    def _sync(self) -> None:
        """Wait until the child has written down all that it has sent by now. A dead child has."""
        if self._child.stdin and self._child.poll() is None:
            with self._lock, contextlib.suppress(BrokenPipeError):
                self._child.stdin.write(b"\n")
                self._child.stdin.flush()
                self._line(ANSWER_S)

    def _line(self, timeout_s: float) -> bytes:
        """One line of the child's stdout; b"" at its end or after the time."""
        assert self._child.stdout
        ready, _, _ = select.select([self._child.stdout], [], [], timeout_s)
        return self._child.stdout.readline() if ready else b""

    def _first_line(self) -> int:
        words = self._line(START_S).split()
        if len(words) == 2 and words[0] == b"listening":
            return int(words[1])
        self._child.kill()
        self._gather()
        raise RuntimeError(f"scripted server: did not start\n{self._stderr}")

    def _gather(self) -> None:
        """Keep the records in memory, free everything else."""
        if self._kept:
            return
        self._child.wait()
        self._stderr = (self._path / "stderr").read_text(encoding="utf-8", errors="replace")[-4000:]
        for cls, name in records.FILES.items():
            self._kept[cls] = list(records.read(self._path, cls)) if (self._path / name).exists() else []
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._folder.cleanup()


async def _main(scenario: Scenario, log: Log, options: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or (if asked) the end of stdin; a line on stdin is answered with a line."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server = Server(scenario, log)
    links: list[Link] = []
    sock = Listener(options.port)

    def connect() -> Link:
        links.append(Link(server.serve, sock.connections))
        return links[-1]

    def stdin() -> None:
        data = os.read(0, 4096)
        log.flush()
        os.write(1, b"synced\n" * data.count(b"\n"))
        if not data:
            loop.remove_reader(0)
            stop.set()

    listener = await loop.create_server(connect, sock=sock)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.until_stdin_closes:
        loop.add_reader(0, stdin)
    print(f"listening {listener.sockets[0].getsockname()[1]}", flush=True)
    gc.freeze()
    await stop.wait()
    listener.close()
    tasks = [link.task for link in links if not link.task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.wheel.close()
    log.flush()
    return int(server.faulty)


def main() -> int:
    parser = argparse.ArgumentParser(description="Scripted OpenAI-compatible streaming server.")
    parser.add_argument("--scenario", type=Path, required=True, help="Scenario as JSON (tests.fakes.codec)")
    parser.add_argument("--port", type=int, default=0, help="0 = a free one")
    parser.add_argument("--log", type=Path, required=True, help="directory for requests.jsonl, sent.jsonl, ended.jsonl")
    parser.add_argument("--until-stdin-closes", action="store_true", help="stop at the end of stdin")
    options = parser.parse_args()
    scenario = codec.from_json(options.scenario.read_text(encoding="utf-8"))
    options.log.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_main(scenario, Log(options.log), options))


if __name__ == "__main__":
    sys.exit(main())
