"""Real vLLM engines one after the other in one process, each with its own environment; a small step to compare edits of one model.

    python -m tests.overlay.edited CASES_AS_JSON OUT.json

CASES is a list of {"model": FOLDER, "environment": {...}, "prompts": [token ids, ...], "ranks": 1}; OUT gets, for each, what
`generate.answer` says of each prompt. A case with ABLIT=1 comes first: the plugin is loaded once.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.overlay.generate import answer, engine_environment


@contextmanager
def variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def answers(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=case["model"],
        tensor_parallel_size=case.get("ranks", 1),
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        seed=0,
        skip_tokenizer_init=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=2, detokenize=False)
    done = llm.generate([{"prompt_token_ids": ids} for ids in case["prompts"]], sampling)
    llm.llm_engine.engine_core.shutdown()
    return [answer(request.outputs[0]) for request in done]


def main(cases: list[dict[str, Any]], out: Path) -> None:
    os.environ.update(engine_environment(max(case.get("ranks", 1) for case in cases)) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    found = []
    for case in cases:
        with variables(case["environment"]):
            found.append(answers(case))
        gc.collect()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
