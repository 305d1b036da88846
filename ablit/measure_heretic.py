"""heretic-llm's own trial, timed. Runs in an environment that has PyPI heretic-llm 1.4 and nothing of this project; called by measure.py.

The first line of stdin is {"model", "system", "good", "bad", "reply_tokens", "direction"}, every other one the alpha of a trial; each is
answered by a line of JSON on stdout: the versions, then the trials. A trial is what heretic's objective does: reset, abliterate,
first-token log-probabilities of the good prompts, answers to the bad ones.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

job = json.loads(sys.stdin.readline())
sys.argv = ["heretic", "--model", job["model"]]

from heretic.config import Settings  # noqa: E402
from heretic.model import AbliterationParameters, Model  # noqa: E402
from heretic.utils import Prompt  # noqa: E402


def trial(model: Any, good: Any, bad: Any, base: Any, directions: Any, alpha: float) -> dict[str, Any]:
    """CPU and wall seconds of one trial, its first-token KLD and answers."""
    cpu, wall = time.process_time(), time.monotonic()
    flat = AbliterationParameters(max_weight=alpha, max_weight_position=19.5, min_weight=alpha, min_weight_distance=9.5)
    off = AbliterationParameters(max_weight=0.0, max_weight_position=19.5, min_weight=0.0, min_weight_distance=0.1)
    model.reset_model()
    model.abliterate(directions, 15.0, {"attn.o_proj": flat, "mlp.down_proj": off})
    logprobs = model.get_logprobs_batched(good)
    kld = torch.nn.functional.kl_div(logprobs, base, reduction="batchmean", log_target=True).item()
    answers = model.get_responses_batched(bad, skip_special_tokens=True)
    return {
        "alpha": alpha,
        "first_token_kld": kld,
        "cpu_s": round(time.process_time() - cpu, 3),
        "wall_s": round(time.monotonic() - wall, 3),
        "answers": answers,
    }


def answers() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    settings = Settings(
        model=job["model"],
        dtypes=["float32"],
        device_map="cpu",
        batch_size=len(job["bad"]),
        max_response_length=job["reply_tokens"],
        row_normalization="none",
    )
    model = Model(settings)
    good, bad = ([Prompt(system=job["system"], user=text) for text in job[side]] for side in ("good", "bad"))
    direction = torch.nn.functional.normalize(torch.tensor(job["direction"]), dim=0)
    directions = direction.expand(len(model.get_layers()) + 2, -1).contiguous()
    base = model.get_logprobs_batched(good)
    yield {"version": importlib.metadata.version("heretic-llm"), "torch": torch.__version__}
    for line in sys.stdin:
        yield trial(model, good, bad, base, directions, float(line))


ours = sys.stdout
with contextlib.redirect_stdout(sys.stderr):  # heretic says what it does
    for answer in answers():
        print(json.dumps(answer), file=ours, flush=True)
