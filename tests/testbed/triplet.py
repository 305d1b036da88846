"""The kit of three testbed hosts, and what is served in it: SmolLM2-135M in safetensors and a direction to edit it along."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed import exl3, image, twin, vllm_env
from tests.testbed.host import Host
from tests.testbed.shell import ENV, How, run

KIT = Path(__file__).with_suffix(".toml")
FOLDER = vllm_env.CACHE / "triplet"  # the hosts see it


@dataclass(frozen=True)
class Edit:
    """`direction`: a file that the hosts see; layers are inclusive."""

    direction: Path
    first: int = 10
    last: int = 29
    alpha: float = 2.0

    @property
    def settings(self) -> dict[str, str]:
        given = {"ABLIT_LAYERS": f"{self.first}-{self.last}", "ABLIT_ALPHA": f"{self.alpha:g}", "ABLIT_DIRECTION": str(self.direction)}
        return {"ABLIT": "1", "GLM53_EXTRA_ENV": " ".join([_own(), *(f"{name}={value}" for name, value in given.items())])}


def _own() -> str:
    """What the kit gives the engine: a setting replaces the kit's, and this one is to be longer, not another."""
    line = next(line for line in KIT.read_text().splitlines() if line.startswith("GLM53_EXTRA_ENV"))
    return line.split('"')[1]


def model() -> Path:
    """SmolLM2 as safetensors with its tokenizer (converted once, where gguf is installed) and the environment that serves it."""
    exl3.ensure()
    python = run([sys.executable, "-m", "tests.overlay.env"], "make the environment that converts the model", _here(600)).split()[-1]
    return Path(run([python, "-m", "tests.overlay.smollm2"], "convert SmolLM2", _here(300)).split()[-1])


def _here(timeout_s: float) -> How:
    """With this process's own pip settings, and its folders of caches: the model of the local kit is there."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("HOME", "XDG_CACHE_HOME")}
    return How(timeout_s=timeout_s, env=ENV | settings | {"PYTHONPATH": str(twin.ROOT)})


def user(folder: Path, **settings: str) -> twin.User:
    """Somebody whose copy of the code has the kit."""
    return twin.User.with_kit(folder, "triplet", KIT.read_text(), **settings)


def prepare(*hosts: Host) -> None:
    for host in hosts:
        image.load(host)


def write_direction(folder: Path, hidden: int = 576) -> Path:
    """A direction file as the plugin reads it: safetensors with one fp32 tensor, from a fixed seed."""
    source = random.Random(5)
    values = array("f", [source.gauss(0.0, 1.0) for _ in range(hidden)])
    tensor = {"dtype": "F32", "shape": [hidden], "data_offsets": [0, 4 * hidden]}
    header = json.dumps({"__metadata__": {"hidden": str(hidden)}, "direction": tensor}).encode()
    header += b" " * (-len(header) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "direction.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + values.tobytes())
    return file


# --- what the server says, and what it should ---


@dataclass(frozen=True)
class Step:
    """One greedy token and the five best there: id -> log-probability."""

    id: int
    best: Mapping[int, float]

    @property
    def lead(self) -> float:
        first, second, *_ = sorted(self.best.values(), reverse=True)
        return first - second


def ask(url: str, prompt: list[int]) -> list[Step]:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    choice = exl3.post(f"{url}/v1/completions", {**body, "return_token_ids": True, "return_tokens_as_token_ids": True})["choices"][0]
    rows = choice["logprobs"]["top_logprobs"]
    return [
        Step(number, {int(name.rpartition(":")[2]): value for name, value in row.items()})
        for number, row in zip(choice["token_ids"], rows, strict=True)
    ]


def offline(folder: Path, model: Path, edit: Edit, asked: Sequence[tuple[list[int], list[Step]]]) -> dict[str, list[list[Step]]]:
    """What transformers says in fp32 after each of the served tokens (tests/overlay/offline.py), by kind: "stock" and "edited"."""
    rows = [[prompt, [step.id for step in steps]] for prompt, steps in asked]
    layers = list(range(edit.first, edit.last + 1))
    case = {"model": str(model), "direction": str(edit.direction), "layers": layers, "alpha": edit.alpha, "rows": rows}
    out = folder / "offline.json"
    words = [str(vllm_env.ensure().python), "-m", "tests.overlay.offline", json.dumps(case), str(out)]
    run(
        ["env", "-C", str(twin.ROOT), *words],
        "compute the reference",
        How(timeout_s=300, env=ENV | vllm_env.CPU_ENV | {"OMP_NUM_THREADS": "2"}),
    )
    found = json.loads(out.read_text())
    return {kind: [[_step(step) for step in steps] for steps in found[kind]] for kind in ("stock", "edited")}


def _step(best: list[list[float]]) -> Step:
    return Step(int(best[0][0]), {int(number): value for number, value in best})
