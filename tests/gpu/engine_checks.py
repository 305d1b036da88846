"""The plugin in real vLLM on a real GPU: engines side by side on one card, and what their answers must have in common.

    python -m tests.gpu.engine_checks MODELS RECEIPT.json [--visit paths|speculation] [--only NAME ...] [--at-once 10]

MODELS: what tests.gpu.models wrote, or for the visit "speculation" tests.gpu.models_chain. Every engine is a process group with a time
limit of its own; the receipt is written anew after each, so a visit that is cut short still leaves one. Exit code 1 if a check failed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu import about
from tests.gpu.engines import ENGINES, MOE_PROMPTS, PAIRS, Engine, Pair
from tests.gpu.speculation import SPECULATION, SPECULATION_PAIRS, findings
from tests.gpu.verdicts import Answers, drafted, verdicts

VISITS: dict[str, tuple[tuple[Engine, ...], tuple[Pair, ...]]] = {
    "paths": (ENGINES, PAIRS), "speculation": (SPECULATION, SPECULATION_PAIRS),
}  # fmt: skip

TOLD = re.compile(r"EXL3 experts run by|[Uu]sing .*(?:backend|attention)|Graph capturing finished|ablation|Model Runner V\d")


def command(engine: Engine, models: Path, prompts: dict[str, Any]) -> list[str]:
    asked = prompts[engine.prompts]
    llm = {"model": str(models / engine.model), **engine.arguments}
    if "model" in llm.get("speculative_config", {}):
        llm["speculative_config"] = llm["speculative_config"] | {"model": str(models / llm["speculative_config"]["model"])}
    given = {"llm": llm, "prompts": asked["prompts"], "answer": asked["answer"], "times": engine.times, "broken": engine.broken}
    return [sys.executable, "-m", "tests.gpu.engine", json.dumps(given)]


def environment(engine: Engine, models: Path) -> dict[str, str]:
    return os.environ | {name: value.format(models=models) for name, value in engine.environment.items()}


def run(engine: Engine, words: list[str], variables: dict[str, str], logs: Path) -> dict[str, Any]:
    """Its JSON, or "error" with what it said last; "told": lines of its log that say which way it went; "ablation": those about edits."""
    log = logs / f"{engine.name}.log"
    begin = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=variables, start_new_session=True)
        late = threading.Timer(engine.limit_s, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        code = process.wait()
        late.cancel()
    text = log.read_text(errors="replace")
    rows = [line for line in text.splitlines() if line.startswith('{"answers"')]
    result = json.loads(rows[-1]) if rows else {"error": last_error(text), "exit_code": code}
    told = dict.fromkeys(line.split("] ")[-1] for line in text.splitlines() if TOLD.search(line))
    edits = [line for line in told if line.startswith("ablation")]
    others = [line[:200] for line in told if line not in edits]
    return result | {"wall_s": round(time.monotonic() - begin, 1), "told": others, "ablation": edits}


def last_error(text: str) -> str:
    """The first exception that has a name (later ones are its consequences), or the last lines."""
    lines = [re.sub(r"^\(?\w+ pid=\d+\)\s*(?:ERROR [\d-]+ [\d:]+ \[[^\]]*\]\s*)?", "", line) for line in text.splitlines()]
    named = [line for line in lines if re.match(r"(?:[\w.]+(?:Error|Exception|Mismatch|Exit|WrongVllm|UnknownPack)): ", line)]
    return named[0][:800] if named else "\n".join(lines[-8:])[-800:]


def prompts_of(models: Path) -> tuple[dict[str, Any], dict[str, Answers]]:
    known = json.loads((models / "reference.json").read_text())
    kinds = [kind for kind in ("short", "long") if kind in known]
    prompts = {kind: {"prompts": [row["prompt"] for row in known[kind]], "answer": len(known[kind][0]["ids"])} for kind in kinds}
    prompts["moe"] = {"prompts": [list(ids) for ids in MOE_PROMPTS], "answer": 16}
    names = {"short": "transformers", "long": "transformers-long"}
    return prompts | known.get("asked", {}), {names[kind]: known[kind] for kind in kinds}


def check(models: Path, receipt: Path, engines: list[Engine], at_once: int, pairs: tuple[Pair, ...] = PAIRS) -> dict[str, Any]:
    """Those that come last start when the others have ended."""
    prompts, known = prompts_of(models)
    expected = json.loads((models / "expected.json").read_text()) if (models / "expected.json").exists() else {}
    logs = receipt.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"environment": about.environment(), "engines": results}
    lock = threading.Lock()

    def one(engine: Engine) -> None:
        result = (
            {"skipped": f"needs {engine.gpus} GPUs"}
            if engine.gpus > about.gpus()
            else run(engine, command(engine, models, prompts), environment(engine, models), logs)
        )
        with lock:
            results[engine.name] = result
            answers = known | {name: row["answers"] for name, row in results.items() if "answers" in row}
            report["checks"] = [*verdicts(answers, pairs), *drafted(results), *findings(engines, results, expected)]
            receipt.write_text(json.dumps(report, indent=1) + "\n")
            print(engine.name, result.get("wall_s"), "s", result.get("error") or result.get("skipped") or "answered", flush=True)

    for last in (False, True):
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, [engine for engine in engines if engine.last == last]))
    return report


def failures(report: dict[str, Any]) -> list[str]:
    broken = [f"{name}: {row['error']}" for name, row in report["engines"].items() if "error" in row]
    return broken + [f"{row['what']}: {row['failed']}" for row in report["checks"] if row["failed"]]


def main(say: Callable[..., None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.engine_checks")
    parser.add_argument("models", type=Path)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--visit", choices=VISITS, default="paths")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--at-once", type=int, default=10)
    args = parser.parse_args()
    if not about.gpus():
        raise SystemExit("no NVIDIA GPU here (nvidia-smi names none): nothing was checked")
    engines, pairs = VISITS[args.visit]
    chosen = [one for one in engines if one.name in args.only or not args.only]
    report = check(args.models, args.receipt, chosen, args.at_once, pairs)
    for row in report["checks"]:
        say(row)
    say(*failures(report), sep="\n")
    return bool(failures(report))


if __name__ == "__main__":
    sys.exit(main())
