"""Whole served sweeps on the testbed, whose receipts are committed: SmolLM2-135M in fp32 by real vLLM, one direction and its controls.

    python -m tests.testbed.sweeps solo OUT       # one rank, which drafts by n-gram lookup, too: stock, twin, three controls, the direction
    python -m tests.testbed.sweeps triplet OUT    # three ranks on three hosts: stock, twin, one control, the direction

Half an hour and a quarter of one, on two cores. OUT gets the receipts, and in work/ the stock pass that `ablit.served.agree` needs.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.testbed import cpu_image, exl3, image, images, solo, triplet, twin, vllm_env
from tests.testbed.hosts import Testbed

DIRECTION = twin.ROOT / "results/ablation/brief-15.safetensors"
FLAGS = ("--direction", str(DIRECTION), "--layers", "10-29", "--alphas", "2", "--windows", "1")
ASKED: Mapping[str, str] = {
    "solo": "--prompts 100 --reply-tokens 32 --control-seeds 3 --speed-runs 2",
    "triplet": "--prompts 4 --reply-tokens 4 --control-seeds 1 --speed-runs 0",  # three ranks on two cores answer slowly
}


@contextmanager
def on_one_host(bed: Testbed, folder: Path) -> Iterator[tuple[twin.User, dict[str, str]]]:
    """A user of the kit `solo`, whose image is there, and the settings to call it with."""
    head = bed.hosts[0]
    vllm_env.ensure()
    solo.model()
    image.load(head)
    images.clear(head)
    cpu_image.build(head)
    try:
        yield solo.user(folder), solo.drafting()
    finally:
        twin.clear([head])
        images.clear(head)


@contextmanager
def on_three_hosts(bed: Testbed, folder: Path) -> Iterator[tuple[twin.User, dict[str, str]]]:
    """A user of the kit `triplet`, with the model of the kit `solo` and room for a window of the panel."""
    exl3.ensure()
    with bed.widened(3) as wide:
        triplet.prepare(*wide.hosts)
        try:
            yield triplet.user(folder), {"MODEL": str(solo.model()), "MAX_MODEL_LEN": "1024", "MAX_NUM_BATCHED_TOKENS": "1024"}
        finally:
            twin.clear(wide.hosts)


PLACES = {"solo": on_one_host, "triplet": on_three_hosts}


def call(caller: twin.User, settings: Mapping[str, str], *words: str) -> int:
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
        return call(caller, settings, "ablit.sweep", "--kit", kit, *FLAGS, *ASKED[kit].split(), "--out", str(Path(out).absolute()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
