"""A search instead of a grid: Optuna's multi-objective TPE over alpha and a kernel of layers, resumed from its journal."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ablit.edit import Vectors
from ablit.evaluate import Basis, Bench
from ablit.receipt import Receipt
from ablit.spec import EditSpec, Kernel, Target
from ablit.sweep import Say, measured
from bench.errors import BenchError
from bench.receipt import canonical, shown

JOURNAL = "journal.log"


@dataclass(frozen=True)
class Space:
    """What is searched: `layers` are those that may be edited, `depth` is how many the model has."""

    basis: Basis
    vectors: Vectors
    targets: tuple[Target, ...]
    layers: tuple[int, ...]
    depth: int

    @property
    def study(self) -> str:
        """A study's name: trials of another question, direction, targets or layers are not its trials."""
        parts = [self.basis, self.vectors.id, self.targets, self.layers]
        return f"ablit-{hashlib.sha256(canonical(parts).encode()).hexdigest()[:12]}"


def upper(depth: int) -> tuple[int, ...]:
    """The layers that are searched unless others are named. The first quarter stays stock: editing it multiplied the cost by 3.4 without
    any gain."""
    return tuple(range(depth // 4, depth))


def suggested(trial: Any, space: Space) -> EditSpec:
    """Alpha 0.25 to 3; kernel peak among the layers, reach 2 layers (or their widest gap, so that one is always reached) to two thirds of
    the depth, floor 0 to 1."""
    low = max([2, *(b - a for a, b in itertools.pairwise(space.layers))])
    kernel = Kernel(
        peak=trial.suggest_float("peak", space.layers[0], space.layers[-1]),
        reach=trial.suggest_float("reach", low, max(low, 0.66 * space.depth)),
        floor=trial.suggest_float("floor", 0, 1),
    )
    alpha = trial.suggest_float("alpha", 0.25, 3)
    layers = tuple(layer for layer in space.layers if kernel.weight(layer) > 0)
    return EditSpec(direction=space.vectors.id, layers=layers, alpha=alpha, kernel=kernel, targets=space.targets)


def study_of(folder: Path, space: Space, seed: int) -> Any:
    """The study of this space in `folder`, made when there is none. Raises BenchError when its journal cannot be used."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _journal(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _mend(folder / JOURNAL)
        # absolute: the lock that a killed process left is a link beside the journal, and Optuna waits forever for one that leads nowhere
        storage = JournalStorage(JournalFileBackend(str((folder / JOURNAL).absolute())))
        study = optuna.create_study(study_name=space.study, storage=storage, directions=["minimize", "minimize"], load_if_exists=True)
        # a sampler that starts from the same seed again would suggest the first trials again
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), multivariate=True)
        return study


@contextlib.contextmanager
def _journal(folder: Path) -> Iterator[None]:
    """Within the block the journal is read or written, and nothing else is done."""
    try:
        yield
    except Exception as error:  # a full disk, or whatever Optuna trips over in a file that is none of its
        why = (str(error) or type(error).__name__).splitlines()[0]
        hint = "try: free disk space and run it again (finished trials are kept), or another --out"
        raise BenchError(f"the search journal {shown(folder / JOURNAL)} cannot be used: {why}\n{hint}") from error


def _mend(journal: Path) -> None:
    """Drop a last line that a full disk cut off: what is appended behind it could not be read."""
    content = journal.read_bytes() if journal.exists() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(journal, content.rfind(b"\n") + 1)


def left(study: Any, trials: int) -> int:
    """How many are to be made until `trials` are finished, those of earlier runs counted."""
    return max(trials - len(study.get_trials(states=(TrialState.COMPLETE,))), 0)


def run(bench: Bench, space: Space, study: Any, folder: Path, trials: int, say: Say) -> list[Receipt]:
    """Trials until `trials` are finished; the receipts made now. Objectives: rate, KLD. Raises BenchError."""
    made: list[Receipt] = []
    began, before = time.monotonic(), trials - left(study, trials)
    try:
        for number in range(before + 1, trials + 1):
            with _journal(folder):
                trial = study.ask()
                spec = suggested(trial, space)
            measured(bench, [(spec, space.vectors, ())], folder, lambda receipt, _: made.append(receipt))
            summary = made[-1].summary
            with _journal(folder):
                study.tell(trial, (summary.sides[0].rate, summary.kld))
            say(_line(number, trials, made[-1], (time.monotonic() - began) / len(made)))
    except KeyboardInterrupt:
        done = f"interrupted after {before + len(made)} of {trials} trials"
        raise BenchError(f"{done}\ntry: the same command again goes on there") from None
    return made


def _line(number: int, count: int, made: Receipt, each_s: float) -> str:
    summary, spec = made.summary, made.spec
    kernel = f"peak {spec.kernel.peak:.1f} reach {spec.kernel.reach:.1f}" if spec.kernel else ""
    figures = f"alpha {spec.alpha:.2f} {kernel}: KLD {summary.kld:.4f}, rate {summary.sides[0].rate:.0%}"
    return f"trial {number} of {count}: {figures} (about {(count - number) * each_s / 60:.0f} min left)"
