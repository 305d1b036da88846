"""Constraints of the weights: a repository without a commit of its own."""

from __future__ import annotations

from cluster.constraint_model import VLLM, Constraint, described
from cluster.settings import FIELDS, Effective

_PINS = {"model": "model_revision", "dflash_model": "dflash_revision"}


def _unpinned(e: Effective) -> str:
    """The repositories that somebody chose while the commit is still that of the default repository."""
    chosen = {name: getattr(e.settings, name) for name in _PINS}
    loose = [n for n, repo in chosen.items() if repo != FIELDS[n].default and not repo.startswith("/") and e.sources[_PINS[n]] == "default"]
    return described(e, [field for name in loose for field in (name, _PINS[name])])


WEIGHTS: tuple[Constraint, ...] = (
    Constraint(
        "model-revision", 0, VLLM, (), _unpinned,
        rule="name a repository in MODEL or DFLASH_MODEL without its own commit in MODEL_REVISION or DFLASH_REVISION",
        evidence="the default commit belongs to the default repository; without a pin the same settings serve other weights tomorrow",
        hint="MODEL_REVISION=<the 40 hex digits of a commit of that repository>; kits/checkpoints.toml has those of the public packs",
    ),
)  # fmt: skip
