"""Whole served sweeps on the testbed, whose receipts are committed: SmolLM2-135M in fp32 by real vLLM, one direction and its controls.

    python -m tests.testbed.sweeps solo OUT       # one rank, which drafts by n-gram lookup, too: stock, twin, three controls, the direction
    python -m tests.testbed.sweeps triplet OUT    # three ranks on three hosts: stock, twin, one control, the direction

A quarter of an hour each on two cores. OUT gets the receipts, and in work/ the stock pass that `ablit.served.agree` needs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.testbed import cpu_image, exl3, image, images, solo, triplet, twin, vllm_env
from tests.testbed.hosts import Testbed

DIRECTION = twin.ROOT / "results/ablation/brief-15.safetensors"
FLAGS = ("--direction", str(DIRECTION), "--layers", "10-29", "--alphas", "2", "--windows", "1", "--speed-runs", "0")
# One call after the other into one folder. The first one is whole by itself, and the next measures only what it adds.
CALLS: Mapping[str, Sequence[Sequence[str]]] = {
    "solo": tuple(("--prompts", "4", "--reply-tokens", "4", "--control-seeds", seeds) for seeds in ("1", "3")),
    "triplet": (("--prompts", "4", "--reply-tokens", "4", "--control-seeds", "1"),),  # three ranks on two cores answer slowly
}


class Caller(Protocol):
    """Somebody with a checkout that has the kit."""

    def begin(self, *words: str, **settings: str) -> subprocess.Popen[str]: ...


@contextmanager
def on_one_host(bed: Testbed, folder: Path) -> Iterator[tuple[Caller, dict[str, str]]]:
    """A user of the kit `solo`, whose image is there, and the settings to call it with."""
    head = bed.hosts[0]
    vllm_env.ensure()
    solo.model()
    image.load(head)
    images.clear(head)
    cpu_image.build(head)
    try:
        yield solo.Site.make(folder), solo.drafting()
    finally:
        twin.clear([head])
        images.clear(head)


@contextmanager
def on_three_hosts(bed: Testbed, folder: Path) -> Iterator[tuple[Caller, dict[str, str]]]:
    """A user of the kit `triplet`, with the model of the kit `solo` and room for a window of the panel."""
    exl3.ensure()
    with bed.widened(3) as wide:
        triplet.prepare(*wide.hosts)
        try:
            yield triplet.user(folder), {"MODEL": str(solo.model()), "MAX_MODEL_LEN": "1024", "MAX_NUM_BATCHED_TOKENS": "1024"}
        finally:
            twin.clear(wide.hosts)


PLACES = {"solo": on_one_host, "triplet": on_three_hosts}


def call(caller: Caller, settings: Mapping[str, str], *words: str) -> int:
    """`invoke WORDS`, passing on what it says; Ctrl-C too. Its exit code."""
    with caller.begin(*words, **settings) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stderr:
                print(line, end="", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            print(process.stderr.read(), file=sys.stderr)
        print(process.stdout.read(), flush=True)
    return process.returncode


def main(kit: str, out: str) -> int:
    with Testbed(hosts=2) as bed, tempfile.TemporaryDirectory() as folder, PLACES[kit](bed, Path(folder)) as (caller, settings):
        for flags in CALLS[kit]:
            code = call(caller, settings, "ablit.sweep", "--kit", kit, *FLAGS, *flags, "--out", str(Path(out).absolute()))
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
