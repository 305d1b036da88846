"""A real vLLM scheduler with no model behind it: requests in, steps out, tokens made up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS = 16, 400
BUDGET = 256  # tokens of a step


@dataclass
class Bench:
    """`time`: what the fake clock says; a step takes `plain_s` plus `token_s` for each token above one per request."""

    scheduler: Any
    time: float = 0.0
    plain_s: float = 0.05
    token_s: float = 0.001
    steps: list[dict[str, int]] = field(default_factory=list)

    def add(self, name: str, prompt: Sequence[int], answer: int = 1000, **extra: Any) -> Request:
        params = SamplingParams(max_tokens=answer, ignore_eos=True, extra_args=extra or None)
        request = Request(name, list(prompt), params, None, block_hasher=get_request_block_hasher(BLOCK, sha256))
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        """Tokens scheduled for each request in one step, which is then run."""
        plan = self.scheduler.schedule()
        scheduled = dict(plan.num_scheduled_tokens)
        names = list(scheduled)
        done = [[7] if self._sampled(name) else [] for name in names]
        output = ModelRunnerOutput(req_ids=names, req_id_to_index={name: at for at, name in enumerate(names)}, sampled_token_ids=done)
        self.scheduler.update_from_output(plan, output)
        self.time += self.plain_s + self.token_s * sum(count - 1 for count in scheduled.values())
        self.steps.append(scheduled)
        return scheduled

    def _sampled(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_prompt_tokens)


def full() -> FullAttentionSpec:
    return FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)


def make(kind: type, folder: Path, groups: "Sequence[KVCacheSpec] | None" = None, blocks: int = BLOCKS) -> Bench:
    """`kind`: the scheduler's class. `folder`: any small model. `groups`: kinds of caches in one pool of `blocks`, one full by default."""
    init_none_hash(sha256)
    arguments = EngineArgs(
        model=str(folder), dtype="float32", max_model_len=2048, max_num_batched_tokens=BUDGET, max_num_seqs=8, enforce_eager=True,
        enable_prefix_caching=True, block_size=BLOCK, hf_overrides={"max_position_embeddings": 2048},
    )  # fmt: skip
    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    specs = [KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(groups or [full()])]
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=specs)
    return Bench(kind(config, cache, StructuredOutputManager(config), BLOCK))
