"""The lab's commands inside the lab environment: `python -m ablit JOB`, JOB being {"verb", "flags"} as JSON. Called by ablit/tasks.py."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablit import prompts
from bench.errors import BadRequest, BenchError

if TYPE_CHECKING:  # what takes time to import is imported where an interruption is one line
    from ablit.edit import Vectors
    from ablit.evaluate import Ask, Basis
    from ablit.model import Loaded
    from ablit.receipt import Receipt
    from ablit.search import Space
    from ablit.spec import EditSpec


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
    """The prompts that show the behaviour, and those of the other side; apart from what the user says the direction was fitted on."""
    other: prompts.Prompts | None
    if job.behaviour in prompts.PAIRS and not job.held_out:
        positive, negative = prompts.PAIRS[job.behaviour]
        first, other = prompts.shipped(positive, "held-out"), prompts.shipped(negative, "held-out")
    elif job.held_out:
        first, other = prompts.read(Path(job.held_out)), None
    else:
        raise BadRequest(f"no shipped prompts for {job.behaviour}\ntry: --held-out FILE, or one of {', '.join(prompts.PAIRS)}")
    prompts.apart(_given(job), [side for side in (first, other) if side])
    return first.first(job.prompts), other.first(job.other) if other and job.other else None


def _given(job: Job) -> list[prompts.Prompts]:
    return [prompts.read(Path(path)) for path in (job.positive, job.negative) if path]


def against_fit(job: Job, sides: Sequence[prompts.Prompts], notes: Mapping[str, str]) -> None:
    """Refuse held-out prompts of the fit that the direction file names; say where it cannot be known. Raises BadRequest."""
    if line := prompts.unlike_fit(sides, _given(job), notes):
        say(line)


def direction(job: Job) -> int:
    from ablit import directions, model, provenance
    from bench.kld.model import cache
    from bench.receipt import shown
    from bench.sealed import refuse_unwritable

    sides = [prompts.read(Path(job.positive)), prompts.read(Path(job.negative))]
    if common := {prompts.normal(t) for t in sides[0].texts} & {prompts.normal(t) for t in sides[1].texts}:
        raise BadRequest(f"{len(common)} prompts are in both files, such as {min(common)!r}\ntry: remove them")
    out = Path(job.out)
    refuse_unwritable(out)
    loaded = model.load(job.model_path, job.dtype, say)
    model.refuse_silent(loaded)
    origin = provenance.origin(job.model_path or cache() / model.LOCAL, job.kit_model)
    figures = directions.make(loaded, sides, directions.Recipe(job.layer, job.positions, job.variant), out, origin)
    print(f"{shown(out)}: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return 0


def convert(job: Job) -> int:
    from ablit import directions

    directions.convert(Path(job.direction), Path(job.out))
    return 0


@dataclass(frozen=True)
class _Opened:
    """A model, a direction that fits it, and what is asked of each point. Nothing is measured yet."""

    loaded: Loaded
    vectors: Vectors
    asks: list[Ask]
    basis: Basis


def _opened(job: Job) -> _Opened:
    """What can be refused without a pass through the model is refused here, the quickest first."""
    from ablit import directions, evaluate, model

    sides = [side for side in held_out(job) if side]
    path = Path(job.direction)
    found = directions.read(path)
    against_fit(job, sides, found.metadata)
    loaded = model.load(job.model_path, job.dtype, say)
    vectors = directions.for_model(path, found, loaded)
    model.refuse_silent(loaded)
    asks = [evaluate.Ask(side, job.behaviour, job.reply_tokens) for side in sides]
    return _Opened(loaded, vectors, asks, evaluate.basis(loaded, evaluate.windows_of(loaded, job.windows), asks))


def _grid(job: Job, count: int) -> Any:
    from ablit import grid, spec, sweep

    chosen, controls = grid.strengths(job.alphas, job.controls)
    ranges, targets = tuple(sweep.ranges(job.layers.split("\n"), count)), tuple(job.targets.split(","))
    kernel = spec.kernel(job.flags["kernel"]) if job.flags.get("kernel") else None
    for layers in ranges:
        if kernel and not any(kernel.weight(layer) for layer in layers):
            raise BadRequest(f"--kernel is {job.kernel}: it leaves nothing of alpha in layers {spec.shown(layers)}\ntry: a peak among them")
    return grid.Grid(ranges, chosen, controls, targets, tuple(range(job.control_seeds)), kernel)


def _space(job: Job, opened: _Opened) -> Space:
    """What --trials searches: the layers of --layers if they are named."""
    from ablit import search, spec

    depth = opened.loaded.facts.layers
    layers = spec.layers(job.searched, depth) if job.searched else search.upper(depth)
    return search.Space(opened.basis, opened.vectors, tuple(job.targets.split(",")), layers, depth)


def points(job: Job) -> int:
    """`evaluate` and `sweep`: a grid, and a search with --trials."""
    from ablit import edit, pareto, table

    opened, folder = _opened(job), Path(job.out)
    chosen = _grid(job, opened.loaded.facts.layers).points(opened.vectors, edit.random_like)
    for spec, each in chosen:
        edit.fits(opened.loaded.model, spec, each)
    made = _measured(job, opened, chosen, folder)
    if job.flags.get("trials"):
        made = _of_this_question(opened, folder)
    print(table.markdown(pareto.rows(made)))
    return 0


def _measured(job: Job, opened: _Opened, chosen: Sequence[tuple[EditSpec, Vectors]], folder: Path) -> list[Receipt]:
    """The grid's receipts, and a search if one is asked for. Where all is finished, the unedited model is not run either."""
    from ablit import evaluate, sweep
    from bench.receipt import shown
    from bench.sealed import refuse_unwritable

    space = study = None
    trials = job.flags.get("trials") or 0
    if trials:
        from ablit import search

        space = _space(job, opened)
        study = search.study_of(folder, space, job.seed)
    known = [sweep.finished(folder / f"{evaluate.identity_of(opened.basis, spec)}.json") for spec, _ in chosen]
    finished = [receipt for receipt in known if receipt]
    if len(finished) == len(chosen) and not (study and search.left(study, trials)):
        say(f"all {len(chosen)} points{f' and {trials} trials' if trials else ''} were finished before, in {shown(folder)}")
        return finished
    refuse_unwritable(folder / "receipt.json")
    bench = evaluate.prepare(opened.loaded, opened.asks, job.windows, [spec.layers[0] for spec, _ in chosen], say)
    made = sweep.run(bench, chosen, folder, say)
    if space and study:
        search.run(bench, space, study, folder, trials, say)
    return made


def _of_this_question(opened: _Opened, folder: Path) -> list[Receipt]:
    """The sound receipts in the folder of this model, panel and prompts, along this direction or a random one; a line on the others."""
    from ablit import evaluate, pareto
    from bench.receipt import shown

    good, _ = pareto.load(sorted(folder.glob("*.json")))
    own = [
        receipt
        for receipt in good
        if receipt.id == evaluate.identity_of(opened.basis, receipt.spec)
        and (receipt.control == "random" or receipt.spec.direction == opened.vectors.id)
    ]
    if strange := len(good) - len(own):
        say(f"not in this table: {strange} receipts in {shown(folder)} of other directions, prompts, panels or models")
    return own


VERBS = {"direction": direction, "points": points, "convert": convert}


def _interrupted(verb: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not cut the line off
    kept = "finished points are kept\n  try: the same command again goes on there" if verb == "points" else "nothing was written"
    print(f"interrupted; {kept}", file=sys.stderr)
    return 1


def main() -> int:
    plain = json.loads(sys.argv[1])
    try:
        import torch

        torch.set_num_threads(1)
        return VERBS[plain["verb"]](Job(plain["verb"], plain["flags"]))
    except BenchError as error:
        first, *rest = str(error).splitlines()
        print("\n".join([f"error: {first}", *(f"  {line}" for line in rest)]), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _interrupted(plain["verb"])


if __name__ == "__main__":
    sys.exit(main())
