"""How fast the lab is beside other ways to the same figures. Run in the lab environment, one thread, one process:

    python -m ablit.measure panel OUT DIRECTION [WINDOWS_PER_STRATUM]
    python -m ablit.measure replies OUT DIRECTION HERETIC_PYTHON

panel: KLD of every position of the panel, our form beside the plain one (unedited states stored; for each point a full forward with
transformers and two log-softmaxes over the vocabulary). replies: first-token KLD of 16 prompts and 16 answers of 40 tokens, as
PyPI heretic-llm 1.4 does for a trial, beside heretic itself in an environment of its own (measure_heretic.py); same model, prompts, fp32.
CPU seconds of the process are compared: other work on the machine does not change them much.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablit import directions, edit, model, panel, prompts, reply
from ablit.lean import Lean
from ablit.model import Loaded
from ablit.provenance import tool
from ablit.spec import EditSpec
from bench.kld import windows as texts
from bench.kld.model import cache, converted
from bench.receipt import seal_of
from bench.sealed import write

LAYERS = tuple(range(10, 30))
PROMPTS, REPLY_TOKENS, GROUP, ROWS = 16, 40, 4, 256
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


def compare_panel(out: Path, direction: Path, per_stratum: int | None) -> dict[str, Any]:
    loaded = model.load(None, "float32", say)
    vectors, lean = directions.open_file(direction, loaded), Lean(loaded.model)
    cut = texts.cut(texts.load(), lambda text: loaded.tokenizer.encode(text, add_special_tokens=False), per_stratum=per_stratum)
    ids = torch.tensor([window.tokens[:-1] for window in cut])
    base, once = timed(lambda: panel.Base(loaded.model, cut, entries=[LAYERS[0]]))
    old = base.base.hidden.view(*ids.shape, -1)
    ours, plain, worst = [], [], 0.0
    for alpha in (1.0, 2.0):
        with edit.edited(loaded.model, EditSpec(direction=vectors.id, layers=LAYERS, alpha=alpha), vectors):
            found, spent = timed(lambda: base.measure(LAYERS[0]))
            ours.append(spent)
            full, spent = timed(lambda: plain_point(loaded, ids, old, lean.head))
            plain.append(spent)
            say(f"alpha {alpha:g}: ours {ours[-1]}, plain {plain[-1]}, means {found.kld.mean():.7f} {full.mean():.7f}")
            worst = max(worst, _worst(loaded, ids[:1], found.kld[:1], old[:1], lean.head))
    ratio = sum(each["cpu_s"] for each in plain) / sum(each["cpu_s"] for each in ours)
    minute = 60 * len(ours) / sum(each["cpu_s"] for each in ours)
    return {
        "positions": ids.numel(),
        "layers": "10-29",
        "ours": ours,
        "plain": plain,
        "ours_once": once,
        "ratio": round(ratio, 3),
        "points_per_cpu_minute": round(minute, 3),
        "worst_error_against_fp64": worst,
    }


def _worst(loaded: Loaded, ids: Tensor, kld: Tensor, old: Tensor, head: Tensor) -> float:
    """Largest difference of one window's positions from the definition in fp64 over the full vocabulary."""
    now = loaded.model.model(ids, use_cache=False).last_hidden_state[0]
    pairs = zip(old[0].double().split(128), now.double().split(128), strict=True)
    full = torch.cat([panel.full_kld(head, a, b) for a, b in pairs])
    return float((full - kld[0]).abs().max())


def our_trial(loaded: Loaded, first: reply.Chat, asked: reply.Chat, was: Tensor, spec: EditSpec, vectors: edit.Vectors) -> float:
    """First-token KLD of one set, answers to the other."""
    with edit.edited(loaded.model, spec, vectors):
        state, _ = reply.begun(first, spec.layers[0], 0)
        kld = float(panel.full_kld(asked.lean.head, was, state).mean())
        reply.answers(asked, spec.layers[0], REPLY_TOKENS)
    return kld


def compare_replies(out: Path, direction: Path, python: Path) -> dict[str, Any]:
    loaded = model.load(None, "float32", say)
    vectors, lean = directions.open_file(direction, loaded), Lean(loaded.model)
    good, bad = (prompts.shipped(side, "held-out").first(PROMPTS) for side in ("direct", "long"))
    first, asked = (reply.chat(lean, loaded.tokenizer, each.texts, loaded.ends) for each in (good, bad))
    was, _ = reply.begun(first, 0, 0)
    trials = []
    for alpha in (1.0, 1.0, 2.0):  # the first one fills the entry cache and is not counted
        spec = EditSpec(direction=vectors.id, layers=LAYERS, alpha=alpha)
        kld, spent = timed(partial(our_trial, loaded, first, asked, was, spec, vectors))
        trials.append({"alpha": alpha, "first_token_kld": kld, **spent})
        say(f"ours: {trials[-1]}")
    theirs = _heretic(python, good, bad, vectors)
    ratio = sum(t["cpu_s"] for t in theirs["trials"][1:]) / sum(t["cpu_s"] for t in trials[1:])
    return {
        "prompts": [good.name, bad.name],
        "count": PROMPTS,
        "reply_tokens": REPLY_TOKENS,
        "dtype": "float32",
        "ours": trials,
        "heretic": theirs,
        "ratio": round(ratio, 3),
    }


def _heretic(python: Path, good: prompts.Prompts, bad: prompts.Prompts, vectors: edit.Vectors) -> dict[str, Any]:
    folder = converted(cache() / model.LOCAL, say)
    job = {
        "model": str(folder),
        "system": SYSTEM,
        "good": good.texts,
        "bad": bad.texts,
        "reply_tokens": REPLY_TOKENS,
        "direction": vectors.tensor.tolist(),
    }
    script = Path(__file__).with_name("measure_heretic.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(python), str(script)], input=json.dumps(job), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"heretic failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"heretic: {found}")
    return found


def main() -> None:
    torch.set_num_threads(1)
    what, out, direction, *more = sys.argv[1:]
    if what == "panel":
        found = compare_panel(Path(out), Path(direction), int(more[0]) if more else None)
    else:
        found = compare_replies(Path(out), Path(direction), Path(more[0]))
    machine = {"cpu": cpu_model(), "threads": 1, "load_1m": os.getloadavg()[0], "torch": torch.__version__}
    document = {"measure": f"spark-lab/ablit-{what}/v1", "tool": tool(), "machine": machine, **found}
    write({**document, "seal": seal_of(document)}, Path(out))


if __name__ == "__main__":
    main()
