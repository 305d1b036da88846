"""The plugin in real vLLM on a real GPU: engines side by side on one card, and what their answers must have in common.

    python -m tests.gpu.engine_checks MODELS RECEIPT.json [--only NAME ...] [--at-once 10]

MODELS: what tests.gpu.models wrote. Every engine is a process group with a time limit of its own; the receipt is written anew after each,
so a visit that is cut short still leaves one. Exit code 1 if a check failed.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu import about

# Of log-probabilities. transformers' own bf16 differs from its fp32 by up to 0.1 on these models (reference.json).
NEAR = 0.15
TIE = 0.1  # a lead below which two correct engines may choose differently
THIN = 0.02  # a router's margin (models.margins) below which bf16 may choose another expert, whose log-probability is another
SPARSE = {"backend": "FLASHMLA_SPARSE"}
TOLD = re.compile(r"EXL3 experts run by|[Uu]sing .*(?:backend|attention)|Capturing CUDA|Graph capturing finished|ablation|Model Runner V\d")

Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Engine:
    """`prompts`: which of the prompts; `llm`: LLM arguments beside engine.SHARED."""

    name: str
    model: str
    prompts: str = "short"
    llm: dict[str, Any] = field(default_factory=dict)
    times: int = 1
    limit_s: float = 230
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        return ({"attention_config": SPARSE} if self.model.startswith("glm") else {}) | self.llm

    @property
    def gpus(self) -> int:
        return int(self.llm.get("tensor_parallel_size", 1))


EAGER = {"enforce_eager": True}
TWO = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
NCCL = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}  # symmetric memory may use NVLink multicast
LONG = {"max_model_len": 2560, "max_num_batched_tokens": 4096}


def speculating(**config: Any) -> dict[str, Any]:
    return {"speculative_config": config}


# "{models}" stands for the folder
ABLIT = {
    "ABLIT": "1", "ABLIT_METHOD": "proj", "ABLIT_LAYERS": "0-3", "ABLIT_ALPHA": "1.5", "ABLIT_INCLUDE_MTP": "0",
    "ABLIT_DIRECTION": "{models}/direction.safetensors",
}  # fmt: skip

# In order of importance: the first ones start first.
ENGINES = (
    Engine("glm-dense", "glm-dense", llm=EAGER, times=16),
    Engine("glm-exl3", "glm-exl3", llm=EAGER, times=16),
    Engine("glm-exl3-graphs", "glm-exl3"),
    Engine("glm-exl3-mtp", "glm-exl3", llm=EAGER | speculating(method="mtp", num_speculative_tokens=2)),
    Engine(
        "glm-exl3-dflash2", "glm-exl3",
        llm=EAGER | speculating(method="dflash", model="dflash2", num_speculative_tokens=3, attention_backend="FLASH_ATTN"),
    ),
    Engine("glm-exl3-ablit", "glm-exl3", llm=EAGER, environment=ABLIT),
    Engine("glm-ablated", "glm-ablated", llm=EAGER),
    Engine("glm-exl3-long", "glm-exl3", "long", EAGER | LONG),
    Engine("glm-dense-long", "glm-dense", "long", EAGER | LONG),
    Engine("glm-exl3-tp2", "glm-exl3", llm=EAGER | TWO, environment=NCCL),
    Engine("glm-exl3-tp2-graphs", "glm-exl3", llm=TWO, environment=NCCL),
    Engine("glm-exl3-ep2", "glm-exl3", llm=EAGER | TWO | {"enable_expert_parallel": True}, environment=NCCL),
    Engine("moe-exl3-tp2", "moe-exl3", "moe", EAGER | TWO, environment=NCCL),
    Engine("moe-dense", "moe-dense", "moe", EAGER),
    Engine("moe-exl3", "moe-exl3", "moe", EAGER),
    Engine("moe-exl3-graphs", "moe-exl3", "moe"),
    Engine("glm-swapped", "glm-swapped", llm=EAGER),
    Engine("glm-exl3-torch", "glm-exl3", llm=EAGER, environment={"EXL3_MOE_PATH": "torch"}),
    Engine("glm-exl3-mtp-graphs", "glm-exl3", llm=speculating(method="mtp", num_speculative_tokens=2)),
    Engine(
        "glm-exl3-dflash2-graphs", "glm-exl3",
        llm=speculating(method="dflash", model="dflash2", num_speculative_tokens=3, attention_backend="FLASH_ATTN"),
    ),
)  # fmt: skip


# --- what must hold; each a function of all answers so far that yields (what, true or a reason) ---


def alike(found: Answers, wanted: Answers, near: float, margins: list[list[float]] | None = None) -> str:
    """ "" if the ids agree and their log-probabilities are near; after a near tie that was decided otherwise, the rest is not compared.

    A log-probability may be further off where the router's margin is thin.
    """
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        thin = margins[number] if margins else [1.0] * len(one["ids"])
        if reason := differing(one, other, near, thin):
            return f"prompt {number}, {reason}"
    return ""


def differing(one: dict[str, Any], other: dict[str, Any], near: float, margins: list[float]) -> str:
    for place, (mine, theirs) in enumerate(zip(one["ids"], other["ids"], strict=True)):
        if mine != theirs:
            if max(one["leads"][place], other["leads"][place]) < TIE:
                return ""
            return f"token {place}: {mine} instead of {theirs}, which led by {other['leads'][place]:.3f}"
        if abs(one["logprobs"][place] - other["logprobs"][place]) > near and margins[place] > THIN:
            return f"token {place}: log-probability {one['logprobs'][place]:.3f}, not {other['logprobs'][place]:.3f}"
    return ""


def compared(found: Answers, wanted: Answers) -> dict[str, Any]:
    """How many ids agree from the start, of how many; the largest differences of their log-probabilities and the median."""
    gaps: list[float] = []
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs, here, there in zip(one["ids"], other["ids"], one["logprobs"], other["logprobs"], strict=True):
            if mine != theirs:
                break
            gaps.append(round(abs(here - there), 5))
    total = sum(len(row["ids"]) for row in wanted)
    largest = sorted(gaps, reverse=True)[:3]
    return {"equal_ids": len(gaps), "ids": total, "largest_logprob_differences": largest, "median": statistics.median(gaps or [0.0])}


@dataclass(frozen=True)
class Pair:
    """`found` must answer as `wanted` does (an engine, or "transformers")."""

    found: str
    wanted: str
    near: float = NEAR
    differ: bool = False


PAIRS = (
    Pair("glm-dense", "transformers"),
    Pair("glm-exl3", "transformers"),
    Pair("glm-exl3", "glm-dense"),
    Pair("glm-exl3-torch", "glm-exl3"),
    Pair("glm-exl3-graphs", "glm-exl3"),
    Pair("glm-exl3-mtp", "glm-exl3"),
    Pair("glm-exl3-mtp-graphs", "glm-exl3"),
    Pair("glm-exl3-dflash2", "glm-exl3"),
    Pair("glm-exl3-dflash2-graphs", "glm-exl3"),
    Pair("glm-exl3-long", "transformers-long"),
    Pair("glm-exl3-long", "glm-dense-long"),
    Pair("glm-exl3-tp2", "glm-exl3"),
    Pair("glm-exl3-tp2-graphs", "glm-exl3"),
    Pair("glm-exl3-ep2", "glm-exl3"),
    Pair("moe-exl3-tp2", "moe-exl3"),
    Pair("moe-exl3", "moe-dense"),
    Pair("moe-exl3-graphs", "moe-exl3"),
    Pair("glm-exl3-ablit", "glm-ablated"),
    Pair("glm-exl3-ablit", "glm-exl3", differ=True),
    Pair("glm-swapped", "glm-exl3", differ=True),
)


def verdicts(answers: dict[str, Answers]) -> Iterator[dict[str, Any]]:
    for pair in PAIRS:
        if pair.found in answers and pair.wanted in answers:
            given = answers[pair.found], answers[pair.wanted]
            reason = alike(*given, pair.near, margins(given[1], answers["transformers"]))
            if pair.differ:
                reason = "" if reason else "the answers are alike, and the weights are not"
            what = f"{pair.found} {'differs from' if pair.differ else 'answers as'} {pair.wanted}"
            yield {"what": what, "failed": reason, "allowed": pair.near, **compared(*given)}


def margins(answers: Answers, known: Answers) -> list[list[float]] | None:
    """Those that transformers gave, if the answers are to the same prompts and the same."""
    same = [row["ids"] for row in answers] == [row["ids"] for row in known]
    return [row["margins"] for row in known] if same else None


def drafted(results: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Speculation really took place."""
    for name, result in results.items():
        if ("mtp" in name or "dflash" in name) and "counters" in result:
            count = result["counters"].get("vllm:spec_decode_num_draft_tokens", 0)
            yield {"what": f"{name} drafted", "failed": "" if count else "no draft tokens were counted", "draft_tokens": count}


# --- running ---


def command(engine: Engine, models: Path, prompts: dict[str, Any]) -> list[str]:
    asked = prompts[engine.prompts]
    llm = {"model": str(models / engine.model), **engine.arguments}
    if "model" in llm.get("speculative_config", {}):
        llm["speculative_config"] = llm["speculative_config"] | {"model": str(models / llm["speculative_config"]["model"])}
    given = {"llm": llm, "prompts": asked["prompts"], "answer": asked["answer"], "times": engine.times}
    return [sys.executable, "-m", "tests.gpu.engine", json.dumps(given)]


def environment(engine: Engine, models: Path) -> dict[str, str]:
    return os.environ | {name: value.format(models=models) for name, value in engine.environment.items()}


def run(engine: Engine, words: list[str], variables: dict[str, str], logs: Path) -> dict[str, Any]:
    """Its JSON, or "error" with what it said last; "told": lines of its log that say which way it went."""
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
    told = dict.fromkeys(line.split("] ")[-1][:200] for line in text.splitlines() if TOLD.search(line))
    return result | {"wall_s": round(time.monotonic() - begin, 1), "told": list(told)}


def last_error(text: str) -> str:
    """The first exception that has a name (later ones are its consequences), or the last lines."""
    lines = [re.sub(r"^\(?\w+ pid=\d+\)\s*(?:ERROR [\d-]+ [\d:]+ \[[^\]]*\]\s*)?", "", line) for line in text.splitlines()]
    named = [line for line in lines if re.match(r"(?:[\w.]+(?:Error|Exception|Mismatch|Exit|WrongVllm|UnknownPack)): ", line)]
    return named[0][:800] if named else "\n".join(lines[-8:])[-800:]


def prompts_of(models: Path) -> tuple[dict[str, Any], dict[str, Answers]]:
    from tests.overlay.generate import PROMPTS

    known = json.loads((models / "reference.json").read_text())
    prompts = {
        kind: {"prompts": [row["prompt"] for row in known[kind]], "answer": len(known[kind][0]["ids"])} for kind in ("short", "long")
    }
    prompts["moe"] = {"prompts": [list(ids) for ids in PROMPTS], "answer": 16}
    return prompts, {"transformers": known["short"], "transformers-long": known["long"]}


def check(models: Path, receipt: Path, engines: list[Engine], at_once: int) -> dict[str, Any]:
    prompts, known = prompts_of(models)
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
            report["checks"] = [*verdicts(answers), *drafted(results)]
            receipt.write_text(json.dumps(report, indent=1) + "\n")
            print(engine.name, result.get("wall_s"), "s", result.get("error") or result.get("skipped") or "answered", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, engines))
    return report


def failures(report: dict[str, Any]) -> list[str]:
    broken = [f"{name}: {row['error']}" for name, row in report["engines"].items() if "error" in row]
    return broken + [f"{row['what']}: {row['failed']}" for row in report["checks"] if row["failed"]]


def main(engines: tuple[Engine, ...] = ENGINES, say: Callable[..., None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.engine_checks")
    parser.add_argument("models", type=Path)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--at-once", type=int, default=10)
    args = parser.parse_args()
    report = check(args.models, args.receipt, [one for one in engines if one.name in args.only or not args.only], args.at_once)
    for row in report["checks"]:
        say(row)
    say(*failures(report), sep="\n")
    return bool(failures(report))


if __name__ == "__main__":
    sys.exit(main())
