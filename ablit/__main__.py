"""The lab's commands inside the lab environment: `python -m ablit JOB`, JOB being {"verb", "flags"} as JSON. Called by ablit/tasks.py."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablit import pareto, prompts, provenance, table
from bench.errors import BadRequest, BenchError
from bench.receipt import shown


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Job:
    """One command with its flags as plain data (see the dataclasses in tasks.py)."""

    verb: str
    flags: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.flags[name]

    @property
    def model_path(self) -> Path | None:
        return Path(self.flags["model"]) if self.flags["model"] else None


def held_out(job: Job) -> tuple[prompts.Prompts, prompts.Prompts | None]:
    """The prompts that show the behaviour, and those of the other side; apart from what the direction was fitted on."""
    other: prompts.Prompts | None
    if job.behaviour in prompts.PAIRS and not job.held_out:
        positive, negative = prompts.PAIRS[job.behaviour]
        first, other = prompts.shipped(positive, "held-out"), prompts.shipped(negative, "held-out")
        fitted = [prompts.shipped(side, "fit") for side in (positive, negative)]
    elif job.held_out:
        first, other, fitted = prompts.read(Path(job.held_out)), None, []
    else:
        raise BadRequest(f"no shipped prompts for {job.behaviour}\ntry: --held-out FILE, or one of {', '.join(prompts.PAIRS)}")
    fitted += [prompts.read(Path(path)) for path in (job.positive, job.negative) if path]
    prompts.apart(fitted, [side for side in (first, other) if side])
    return first.first(job.prompts), other.first(job.other) if other and job.other else None


def direction(job: Job) -> int:
    from ablit import directions, model
    from bench.kld.model import cache

    sides = [prompts.read(Path(job.positive)), prompts.read(Path(job.negative))]
    if common := {prompts.normal(t) for t in sides[0].texts} & {prompts.normal(t) for t in sides[1].texts}:
        raise BadRequest(f"{len(common)} prompts are in both files, such as {min(common)!r}\ntry: remove them")
    loaded, out = model.load(job.model_path, job.dtype, say), Path(job.out)
    origin = provenance.origin(job.model_path or cache() / model.LOCAL, job.kit_model)
    figures = directions.make(loaded, sides, directions.Recipe(job.layer, job.positions, job.variant), out, origin)
    print(f"{shown(out)}: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return 0


def convert(job: Job) -> int:
    from ablit import directions

    directions.convert(Path(job.direction), Path(job.out))
    return 0


def _opened(job: Job) -> tuple[Any, Any]:
    """The bench with its unedited pass done, and the direction: cheap refusals come before the pass."""
    from ablit import directions, evaluate, model

    first, other = held_out(job)
    loaded = model.load(job.model_path, job.dtype, say)
    vectors = directions.open_file(Path(job.direction), loaded)
    asks = [evaluate.Ask(each, job.behaviour, job.reply_tokens) for each in (first, other) if each]
    return lambda entries: evaluate.prepare(loaded, asks, job.windows, entries, say), (loaded, vectors)


def _grid(job: Job, count: int) -> Any:
    from ablit import spec, sweep
    from ablit.grid import Grid

    chosen = spec.alphas(job.alphas)
    controls = spec.alphas(job.controls) if job.controls else (max(chosen),)
    ranges, targets = tuple(sweep.ranges(job.layers.split("\n"), count)), tuple(job.targets.split(","))
    kernel = spec.kernel(job.flags["kernel"]) if job.flags.get("kernel") else None
    for layers in ranges:
        if kernel and not any(kernel.weight(layer) for layer in layers):
            raise BadRequest(f"--kernel is {job.kernel}: it leaves nothing of alpha in layers {spec.shown(layers)}\ntry: a peak among them")
    return Grid(ranges, chosen, controls, targets, tuple(range(job.control_seeds)), kernel)


def points(job: Job) -> int:
    """`evaluate` and `sweep`: a grid, or a search with --trials."""
    from ablit import edit, sweep

    prepare, (loaded, vectors) = _opened(job)
    folder = Path(job.out)
    chosen = _grid(job, loaded.facts.layers).points(vectors, edit.random_like)
    for spec, each in chosen:
        edit.fits(loaded.model, spec, each)
    bench = prepare([spec.layers[0] for spec, _ in chosen])
    made = sweep.run(bench, chosen, folder, say)
    if job.flags.get("trials"):
        from ablit import search

        search.run(bench, vectors, folder, job.trials, job.seed, say)
        made, _ = pareto.load(sorted(folder.glob("*.json")))
    rows = pareto.rows(made)
    print(table.markdown(rows))
    return 0


VERBS = {"direction": direction, "points": points, "convert": convert}


def main() -> int:
    import torch

    torch.set_num_threads(1)
    plain = json.loads(sys.argv[1])
    try:
        return VERBS[plain["verb"]](Job(plain["verb"], plain["flags"]))
    except BenchError as error:
        first, *rest = str(error).splitlines()
        print("\n".join([f"error: {first}", *(f"  {line}" for line in rest)]), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
