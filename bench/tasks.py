"""The benchmark's tasks. This module is the glue: it asks the launcher where the server is, the rest of bench does not."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli
from bench.errors import BadRequest, BenchError, InvalidMeasurement
from bench.phases.names import PHASES

ROOT = Path(__file__).resolve().parent.parent
RECEIPTS, FIGURES = ROOT / "results" / "receipts", ROOT / "results" / "figures"

_RESULTS = ROOT / "results"
ABLATION_FIGURES = _RESULTS / "ablation" / "figures"
FOLDERS = {  # kinds of receipts with a folder of their own
    "ablation": _RESULTS / "ablation" / "receipts",
    "comparison": _RESULTS / "comparisons",
    "foreign": _RESULTS / "foreign",
    "kld": _RESULTS / "kld",
}


def _note(lines: str | Sequence[str]) -> None:
    print(lines if isinstance(lines, str) else "\n".join(lines), file=sys.stderr)


@dataclass(frozen=True)
class ServerFlags:
    """Which server: a running kit, or any base URL."""

    base_url: str | None = cli.flag("a server's URL (default: that of the running kit)")
    model: str | None = cli.flag("model id to name (default: the one the server lists)")
    kit: str | None = cli.flag("the running kit to use (default: KIT, else local)")


@dataclass(frozen=True)
class BenchFlags(ServerFlags):
    """Flags of `invoke bench`."""

    phase: str = cli.flag(", ".join((*PHASES, "all")), "prose", choices=(*PHASES, "all"))
    runs: int | None = cli.flag("rounds (default: the phase's own, 5 for plain decode)", kind="whole", low=1, high=1000)
    concurrency: tuple[int, ...] = cli.flag("lanes at once, as 1,2,4: one receipt each (default: the phase's own)", (), kind="list", low=1)
    depths: tuple[int, ...] | None = cli.flag("prompt tokens, as 0,8192: one receipt each (default: scaled to the context)", kind="list")
    quick: bool = cli.flag("a trial of the whole way: one run, short prompts and answers", False)
    max_tokens: int | None = cli.flag("longest answer (default: the workload's own)", kind="whole", low=1)
    arm: str = cli.flag("name of the configuration, for comparisons", "default")
    skip_coherence: bool = cli.flag("leave out the three coherence probes", False)
    keep_prefix_cache: bool = cli.flag("send the very same prompt each run, without a salt", False)
    stall_timeout: float = cli.flag("seconds without data that end a run", 120, kind="number", low=0.1)
    out: str | None = cli.flag("a .json file or a folder (default results/receipts/)")
    rate: float = cli.flag("open-loop: requests per second", 0.5, kind="number", low=0.001)
    requests: int = cli.flag("open-loop: how many", 20, kind="whole", low=2)
    slo_ttft: float = cli.flag("open-loop: objective for TTFT, seconds", 2.0, kind="number")
    slo_tpot: float = cli.flag("open-loop: objective for TPOT, seconds", 0.1, kind="number")
    seed: int = cli.flag("open-loop: seed of the arrival times", 1, kind="whole")
    turns: int = cli.flag("agents: turns of each conversation", 4, kind="whole", low=1)

    @property
    def phases(self) -> tuple[str, ...]:
        return PHASES if self.phase == "all" else (self.phase,)


@dataclass(frozen=True)
class _Found:
    """The server a task talks to: base URL, API key, model id to insist on, and what the launcher knows of it."""

    base_url: str
    api_key: str | None
    model: str | None
    system: dict[str, Any]


def _server(flags: ServerFlags) -> _Found:
    """The server that the flags name: a base URL as given, else the running kit. Raises when nothing runs."""
    key = os.environ.get("VLLM_API_KEY") or os.environ.get("API_KEY")
    if flags.base_url:
        return _Found(flags.base_url, key, flags.model, {})
    from cluster import identity, session, settings

    effective = settings.load({"kit": flags.kit})
    with session.opened(effective) as cluster:
        record = cluster.head_record()
    if record is None:
        raise BenchError(f"kit {effective.kit.name} is not running\ntry: invoke up, or --base-url http://HOST:PORT")
    key = effective.settings.vllm_api_key or key
    return _Found(record["base_url"], key, flags.model or record["model"], identity.system(record))


def _options(flags: BenchFlags) -> Any:
    """The bench.run.Options that the flags say."""
    from bench.goodput import Slo
    from bench.run import Load, Options
    from bench.stream import Deadlines

    return Options(
        runs=flags.runs,
        max_tokens=flags.max_tokens,
        salted=not flags.keep_prefix_cache,
        coherence=not flags.skip_coherence,
        arm=flags.arm,
        deadlines=Deadlines(stall_s=flags.stall_timeout),
        quick=flags.quick,
        load=Load(flags.rate, flags.requests, Slo(ttft_s=flags.slo_ttft, tpot_s=flags.slo_tpot), flags.seed, flags.turns),
    )


@cli.flag_task(BenchFlags)
def bench(ctx: Any, flags: BenchFlags) -> int:
    """Measure a running server: one receipt per phase, concurrency and depth. Exit 1: an output gate failed; 3: invalid measurement."""
    from bench import bench_decode
    from bench.progress import reporter
    from bench.receipt import System

    found = _server(flags)
    job = bench_decode.Job(
        found.base_url,
        flags.phases,
        found.model,
        found.api_key,
        out=Path(flags.out) if flags.out else None,
        system=System.model_validate(found.system),
        options=_options(flags),
        concurrency=flags.concurrency,
        depths=flags.depths,
    )
    try:
        with reporter() as report:
            written = bench_decode.bench(job, report)
    except KeyboardInterrupt:
        raise InvalidMeasurement("interrupted before the first run: nothing was measured") from None
    code, lines = bench_decode.verdict(written)
    _note(lines)
    return code


@dataclass(frozen=True)
class AskFlags(ServerFlags):
    """Flags of `invoke ask`."""

    text: str = cli.flag("the request", "")
    thinking: str | None = cli.flag("on, off, or an effort: low, high", choices=("on", "off", "low", "high"))
    image: str | None = cli.flag("an image file to send along")
    max_tokens: int = cli.flag("longest answer", 1024, kind="whole", low=1)


@cli.flag_task(AskFlags)
def ask(ctx: Any, flags: AskFlags) -> None:
    """One streamed request: the answer on stdout; tokens, TTFT and rate on stderr."""
    if not flags.text.strip():
        raise BadRequest('no text\ntry: invoke ask "What is a hash map?"')
    from bench import ask as asking
    from bench.stream import Request

    thinking = {"on": True, "off": False}.get(flags.thinking or "", flags.thinking)
    content = asking.content(flags.text, Path(flags.image) if flags.image else None)
    found = _server(flags)
    request = Request("", content, flags.max_tokens, temperature=None, top_p=None, thinking=thinking)
    asking.ask(found.base_url, found.api_key, found.model, request)


_PATHS = "receipts: files or folders (default results/receipts/)"


def _paths(paths: str, kind: str | None = None) -> list[Path]:
    """The receipt files that a task's words name (see cli.adapt_invoke); default: results/receipts/, or the kind's own."""
    from bench.receipt import find

    return find([Path(word) for word in paths.splitlines()] or [FOLDERS.get(kind or "", RECEIPTS)])


@cli.task(name="schema")
def receipt_schema(ctx: Any) -> None:
    """Write the JSON Schema of every document into bench/schema/ from its model (a test keeps them equal)."""
    from bench.kinds import schemas

    for path, text in schemas.texts().items():
        path.write_text(text)


@cli.task(
    help={
        "paths": _PATHS,
        "kind": "performance, comparison, ... (default: performance, then the figures of other tools if there are some)",
        "format": "markdown, html or latex (default markdown)",
        "json": "performance rows with raw values",
    }
)
def table(ctx: Any, paths: str = "", kind: str | None = None, format: str = "markdown", json: bool = False) -> None:
    """The table of one kind of receipts, from receipts only; unsound or invalid ones are named and left out."""
    from bench import grid
    from bench import table as tables
    from bench.kinds import registry, show

    word = cli.choice("kind", kind, registry.WORDS)
    form = cli.choice("format", format, grid.FORMATS) or grid.FORMATS[0]
    pile = registry.load(_paths(paths, word), [word] if word else ["performance", "foreign"])
    for line in pile.left_out:
        _note(f"left out: {line}")
    if json:
        receipts = [each.document for each in pile.of("performance")]
        print(jsonlib.dumps(jsonlib.loads(tables.frame(receipts).to_json(orient="records")), indent=2))
    else:
        print(show.tables(pile, word, form))


@cli.task(help={"paths": _PATHS, "format": "llama-benchy, llama-benchy-json, csv or vllm (default llama-benchy)"})
def export(ctx: Any, paths: str = "", format: str = "llama-benchy") -> None:
    """Receipts in the form of another tool on stdout; unsound or invalid ones are named and left out."""
    from bench import export as exports
    from bench import table as tables

    form = cli.choice("format", format, exports.FORMATS) or exports.FORMATS[0]
    receipts, left_out = tables.load(_paths(paths))
    for line in left_out:
        _note(f"left out: {line}")
    if not receipts:
        raise InvalidMeasurement("no valid receipt to export\ntry: invoke bench")
    print(exports.render(receipts, form))


@cli.task(
    help={
        "paths": _PATHS,
        "kind": "performance or ablation (default performance)",
        "out": "folder (default results/figures/, of ablation results/ablation/figures/)",
    }
)
def plot(ctx: Any, paths: str = "", kind: str | None = None, out: str | None = None) -> None:
    """Figures as PNG and SVG, from receipts only: throughput, first token, acceptance, latency; of ablation effect against KLD, sweep."""
    from bench import plot as plots
    from bench import table as tables
    from bench.receipt import shown

    word = cli.choice("kind", kind, ("performance", "ablation"))
    if word == "ablation":
        made = _ablation_figures(_paths(paths, word), Path(out) if out else ABLATION_FIGURES)
    else:
        receipts, left_out = tables.load(_paths(paths))
        for line in left_out:
            _note(f"left out: {line}")
        made = plots.write(receipts, Path(out) if out else FIGURES)
    for path in made:
        print(shown(path))


def _ablation_figures(paths: Sequence[Path], out: Path) -> list[Path]:
    from bench import plot as plots
    from bench.kinds import registry
    from bench.quality import AblationPoint

    pile = registry.load(paths, ["ablation"])
    for line in pile.left_out:
        _note(f"left out: {line}")
    return plots.write_ablation(registry.points(pile, AblationPoint), out)
