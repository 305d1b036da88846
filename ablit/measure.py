"""How fast the lab is beside other ways to the same figures. Run in the lab environment, one thread, one process:

    python -m ablit.measure panel OUT DIRECTION [WINDOWS_PER_STRATUM]
    python -m ablit.measure replies OUT DIRECTION HERETIC_PYTHON
    python -m ablit.measure exactness OUT DIRECTION

panel: KLD of every position of the panel, our form beside the plain one (unedited states stored; for each point a full forward with
transformers and two log-softmaxes over the vocabulary), at alpha 2 on each range of layers of the committed sweep. Ours has the total
variation of every eighth position in it. exactness: see measure_exact.py.

replies: first-token KLD of 16 prompts and 16 answers of 40 tokens, as PyPI heretic-llm 1.4 does for a trial, beside heretic itself in an
environment of its own (measure_heretic.py); same model, prompts, fp32; how many answers are the same text is counted.

CPU seconds of the process are compared: other work on the machine does not change them much. The machine's own speed drifts by a tenth
within minutes, so the two sides take turns.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm_glm_exl3.ablation import formula

from ablit import directions, edit, measure_exact, model, panel, prompts, reply
from ablit.grid import forks
from ablit.lean import Lean
from ablit.model import Loaded
from ablit.provenance import tool
from ablit.spec import EditSpec, shown
from bench.kld import windows as texts
from bench.kld.model import cache, converted
from bench.receipt import seal_of
from bench.sealed import write

LAYERS = tuple(range(10, 30))
RANGES = ("10-29", "15-29", "20-29", "15-24", "15-19")  # of the committed sweep, four points each
PROMPTS, REPLY_TOKENS, GROUP, ROWS = 16, 40, 4, 256
ALPHAS = (0.5, 1.0, 2.0, 3.0)  # of trials beside heretic; four times 16 answers go on together
TURNS = 3  # the first one fills caches on both sides and is not counted
# what the model's own chat template puts in front when no system turn is given: heretic always gives one
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The function's result, and CPU and wall seconds."""
    cpu, wall = time.process_time(), time.monotonic()
    result = function()
    return result, {"cpu_s": round(time.process_time() - cpu, 3), "wall_s": round(time.monotonic() - wall, 3)}


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def plain_point(loaded: Loaded, ids: Tensor, old: Tensor, head: Tensor) -> Tensor:
    """KLD [count, time] with nothing reused but the unedited states: a full forward, and both distributions over the vocabulary."""
    found = []
    for part, was in zip(ids.split(GROUP), old.split(GROUP), strict=True):
        now = loaded.model.model(part, use_cache=False).last_hidden_state.float()
        rows = zip(was.flatten(0, 1).split(ROWS), now.flatten(0, 1).split(ROWS), strict=True)
        found.append(torch.cat([panel.full_kld(head, a, b) for a, b in rows]).view(part.shape))
    return torch.cat(found)


def _cut(loaded: Loaded, per_stratum: int | None) -> tuple[texts.Window, ...]:
    return texts.cut(texts.load(), lambda text: loaded.tokenizer.encode(text, add_special_tokens=False), per_stratum=per_stratum)


def compare_panel(direction: Path, per_stratum: int | None) -> dict[str, Any]:
    loaded = model.load(None, "float32", say)
    vectors, lean, cut = directions.open_file(direction, loaded), Lean(loaded.model), _cut(loaded, per_stratum)
    ids = torch.tensor([window.tokens[:-1] for window in cut])
    ranges = [formula.layers(text, len(lean.layers)) for text in RANGES]
    base, once = timed(lambda: panel.Base(loaded.model, cut, entries=[layers[0] for layers in ranges]))
    points: list[dict[str, Any]] = []
    keep = forks([EditSpec(direction=vectors.id, layers=layers, alpha=2.0) for layers in ranges])
    for spec, at in keep.items():
        layers = spec.layers
        with edit.edited(loaded.model, spec, vectors) as edits:
            found, ours = timed(partial(base.measure, layers[0], edits, at))
            full, plain = timed(partial(plain_point, loaded, ids, base.base.hidden.view(*ids.shape, -1), lean.head))
            error = worst(loaded, base, found)
        means = {"kld": float(found.kld.mean()), "plain_kld": float(full.mean()), "worst_error_against_fp64": error}
        points.append({"layers": shown(layers), "ours": ours, "plain": plain, "ratio": _ratio([plain], [ours]), **means})
        say(f"{points[-1]}")
    all_ours, all_plain = [point["ours"] for point in points], [point["plain"] for point in points]
    return {
        "positions": ids.numel(),
        "points": points,
        "ours_once": once,
        "ratio": _ratio(all_plain, all_ours),
        "points_per_cpu_minute": round(60 * len(points) / sum(each["cpu_s"] for each in all_ours), 3),
        "worst_error_against_fp64": max(point["worst_error_against_fp64"] for point in points),
    }


def _ratio(theirs: list[dict[str, float]], ours: list[dict[str, float]]) -> float:
    return round(sum(each["cpu_s"] for each in theirs) / sum(each["cpu_s"] for each in ours), 3)


def worst(loaded: Loaded, base: panel.Base, found: panel.Distances) -> float:
    """Largest difference of the first window's positions from the definition in fp64 over the full vocabulary, the model as it is now."""
    time_ = base.shape[1]
    old, now = base.base.hidden[:time_].double(), base.hidden(0)[0].double()
    full = torch.cat([panel.full_kld(base.head.weight, a, b) for a, b in zip(old.split(128), now.split(128), strict=True)])
    return float((full - found.kld[0]).abs().max())


def exactness(direction: Path) -> dict[str, Any]:
    loaded = model.load(None, "float32", say)
    vectors = directions.open_file(direction, loaded)
    whole = measure_exact.in_the_model(loaded, vectors, _cut(loaded, 1)[:1], LAYERS, worst)
    say(f"{whole}")
    found = list(measure_exact.rows(loaded, vectors))
    facts = loaded.facts.model_dump(mode="json")
    return {"model": facts, "direction": vectors.facts, **measure_exact.summary(found), "in_the_model": whole, "rows": found}


def our_trials(loaded: Loaded, asked: reply.Chat, was: Tensor, vectors: edit.Vectors) -> tuple[list[float], list[list[str]]]:
    """Of each alpha, first-token KLD of the first PROMPTS of `asked`, and answers to the others, which go on together as in a sweep."""
    begun = []
    for alpha in ALPHAS:
        with edit.edited(loaded.model, EditSpec(direction=vectors.id, layers=LAYERS, alpha=alpha), vectors) as edits:
            begun.append(reply.begun(asked, LAYERS[0], REPLY_TOKENS, {(each.layer, each.target) for each in edits}))
    klds = [float(panel.full_kld(asked.lean.head, was, state[:PROMPTS]).mean()) for state, _ in begun]
    said = reply.together(asked, begun, REPLY_TOKENS, PROMPTS)
    return klds, [[answer.text for answer in answers] for answers in said]


def compare_replies(direction: Path, python: Path) -> dict[str, Any]:
    loaded = model.load(None, "float32", say)
    vectors, lean = directions.open_file(direction, loaded), Lean(loaded.model)
    good, bad = (prompts.shipped(side, "held-out").first(PROMPTS) for side in ("direct", "long"))
    asked = reply.chat(lean, loaded.tokenizer, [*good.texts, *bad.texts], loaded.ends)
    was = reply.begun(asked, 0, 0)[0][:PROMPTS]
    turns: list[dict[str, Any]] = []
    with _heretic(python, good, bad, vectors) as (versions, their_trial):
        for _ in range(TURNS):
            (klds, said), spent = timed(partial(our_trials, loaded, asked, was, vectors))
            theirs = [their_trial(alpha) for alpha in ALPHAS]
            same = [sum(a == b for a, b in zip(mine, each.pop("answers"), strict=True)) for mine, each in zip(said, theirs, strict=True)]
            turns.append({"ours": spent, "first_token_kld": klds, "same_answers": same, "heretic": theirs})
            say(f"{turns[-1]}")
    ours, theirs = [turn["ours"] for turn in turns[1:]], [each for turn in turns[1:] for each in turn["heretic"]]
    return {
        "prompts": [good.name, bad.name],
        "count": PROMPTS,
        "reply_tokens": REPLY_TOKENS,
        "dtype": "float32",
        "alphas": ALPHAS,
        "turns": turns,
        "heretic": versions,
        "ratio": _ratio(theirs, ours),
        "trials_per_cpu_minute": round(60 * len(theirs) / sum(each["cpu_s"] for each in ours), 3),
    }


@contextmanager
def _heretic(
    python: Path, good: prompts.Prompts, bad: prompts.Prompts, vectors: edit.Vectors
) -> Iterator[tuple[dict[str, Any], Callable[[float], dict[str, Any]]]]:
    """heretic with its model loaded: its versions, and what makes a trial at an alpha."""
    job = {
        "model": str(converted(cache() / model.LOCAL, say)),
        "system": SYSTEM,
        "good": good.texts,
        "bad": bad.texts,
        "reply_tokens": REPLY_TOKENS,
        "direction": vectors.tensor.tolist(),
    }
    # -P: this folder has a datasets.py, which heretic would import in place of the package
    words = [str(python), "-P", str(Path(__file__).with_name("measure_heretic.py"))]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def answer(line: str) -> dict[str, Any]:
            with suppress(BrokenPipeError):  # it ended: what it said tells why
                print(line, file=process.stdin, flush=True)
            found = process.stdout.readline() if process.stdout else ""
            if not found:
                said.seek(0)
                raise SystemExit(f"heretic failed: {said.read()[-2000:]}")
            return dict(json.loads(found))

        try:
            yield answer(json.dumps(job)), lambda alpha: answer(str(alpha))
        finally:
            process.stdin.close()


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    what, out, direction, *more = sys.argv[1:]
    if what == "panel":
        found = compare_panel(Path(direction), int(more[0]) if more else None)
    elif what == "exactness":
        found = exactness(Path(direction))
    else:
        found = compare_replies(Path(direction), Path(more[0]))
    machine = {"cpu": cpu_model(), "threads": 1, "load_1m": os.getloadavg()[0], "torch": torch.__version__}
    document = {"measure": f"spark-lab/ablit-{what}/v1", "tool": tool(), "machine": machine, **found}
    write({**document, "seal": seal_of(document)}, Path(out))


if __name__ == "__main__":
    main()
