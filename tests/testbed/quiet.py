"""No false alarm: a watch over a kit that works, under load, must say nothing.

    python -m tests.testbed.quiet --minutes 10

starts the twin (root, two hosts), loads it with bursts, long answers and pauses, and ends with 1 when the watch told of anything but
the first state. The test suite runs the same for two minutes.
"""

import argparse
import concurrent.futures
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.testbed import twin
from tests.testbed.hosts import Testbed
from tests.testbed.twin import User

URL = f"http://10.77.0.1:{twin.PORT}"
LANES = 6  # more than the four requests that are decoded at once: some wait, as does the watch's own


def generate(max_tokens: int) -> int:
    """One completion; the number of tokens that came."""
    body = {"model": "tiny-moe", "prompt": "one two three", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"{URL}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


@contextmanager
def watching(user: User, *words: str, **settings: str) -> Iterator["Queue[dict[str, Any]]"]:
    """`invoke watch --json` in the background; its events as they come. It is ended with SIGINT."""
    events: Queue[dict[str, Any]] = Queue()
    with user.begin("watch", "--json", *words, **settings) as process:
        out = process.stdout
        assert out is not None

        def read() -> None:
            for line in out:
                events.put(json.loads(line))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield events
        finally:
            process.terminate()
            reader.join(30)


def drain(events: "Queue[dict[str, Any]]") -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(events.get_nowait())
        except Empty:
            return found


def run(user: User, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Every event of a watch, and how many tokens the load generated meanwhile."""
    end, tokens = time.monotonic() + seconds, 0
    with watching(user, "--interval", "5") as events, concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        while time.monotonic() < end:
            tokens += sum(pool.map(generate, [16, 64, 128, 200, 200, 300]))
            time.sleep(6)  # longer than an interval: some looks find an idle engine
        return drain(events), tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder, Testbed(hosts=2) as bed:
        twin.prepare(bed)
        user = User.at(Path(folder))
        try:
            up = user.invoke("up")
            if up.code != 0:
                print(up.err)
                return 1
            events, tokens = run(user, 60 * minutes)
        finally:
            user.invoke("down")
            twin.clear(bed.hosts)
    print(json.dumps({"minutes": minutes, "tokens": tokens, "events": events}, indent=1))
    return 0 if [event["state"] for event in events] == ["ready"] else 1


if __name__ == "__main__":
    sys.exit(main())
