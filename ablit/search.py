"""A search instead of a grid: Optuna's multi-objective TPE over alpha and a kernel of layers, resumed from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from ablit.edit import Vectors
from ablit.evaluate import Bench
from ablit.receipt import Receipt
from ablit.spec import EditSpec, Kernel
from ablit.sweep import Say, measured
from bench.errors import BenchError

JOURNAL = "journal.log"


def suggested(trial: Any, vectors: Vectors, count: int) -> EditSpec:
    """Alpha 0.25 to 3; kernel peak in the upper three quarters, reach 2 layers to two thirds of the depth, floor 0 to 1.

    The first quarter of the layers stays stock: editing it multiplied the cost by 3.4 without any gain.
    """
    kernel = Kernel(
        peak=trial.suggest_float("peak", 0.25 * count, count - 1),
        reach=trial.suggest_float("reach", 2, 0.66 * count),
        floor=trial.suggest_float("floor", 0, 1),
    )
    alpha = trial.suggest_float("alpha", 0.25, 3)
    layers = tuple(layer for layer in range(count // 4, count) if kernel.weight(layer) > 0)
    return EditSpec(direction=vectors.id, layers=layers, alpha=alpha, kernel=kernel)


def study_of(folder: Path, seed: int) -> Any:
    """The study in `folder`, made when there is none. Raises BenchError when its journal cannot be used."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
        study = optuna.create_study(study_name="ablit", storage=storage, directions=["minimize", "minimize"], load_if_exists=True)
        # a sampler that starts from the same seed again would suggest the first trials again
        study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), multivariate=True)
        return study
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(f"the search journal {folder / JOURNAL} cannot be used: {error}\ntry: another --out") from error


def run(bench: Bench, vectors: Vectors, folder: Path, trials: int, seed: int, say: Say) -> list[Receipt]:
    """Up to `trials` finished trials in all, those of earlier runs counted; the receipts made now. Objectives: rate, KLD."""
    study, made, count = study_of(folder, seed), [], len(bench.loaded.model.model.layers)

    def objective(trial: Any) -> tuple[float, float]:
        made.append(measured(bench, suggested(trial, vectors, count), vectors, folder, []))
        summary = made[-1].summary
        say(f"trial {trial.number + 1}: alpha {made[-1].spec.alpha:.2f}: KLD {summary.kld:.4f}, rate {summary.sides[0].rate:.0%}")
        return summary.sides[0].rate, summary.kld

    left = trials - len(study.get_trials(states=(TrialState.COMPLETE,)))
    try:
        study.optimize(objective, n_trials=max(left, 0))
    except KeyboardInterrupt:
        raise BenchError(f"interrupted after {len(made)} trials\ntry: the same command again goes on there") from None
    return made
