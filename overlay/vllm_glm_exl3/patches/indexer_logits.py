"""Scores of the sparse-attention indexer are given back when the tokens have been picked from them, not when the next are there.

vLLM's loop over a long prompt's pieces holds the last piece's scores (up to VLLM_SPARSE_INDEXER_MAX_LOGITS_MB) while it computes the next
ones, and the last of all while it decodes: twice what its memory profile has counted. Only memory changes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard, imported

SWITCH = "GLM53_RELEASE_INDEXER_LOGITS=0"
MODULE = "vllm.models.glm5next.nvidia.sparse_indexer"
# The second is where the first is called: it must use the scores no more after that.
EXPECTED = {"_merge_dcp_topk_global": "fc5bdaa8ce147927", "sparse_attn_indexer_kpool": "2ccb6a362b5a6359"}


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_RELEASE_INDEXER_LOGITS", "1")


def apply(environment: Mapping[str, str]) -> None:
    """Now if the model's code is there, else as soon as it is: it is large, and most processes never import it."""
    imported.when(MODULE, patch)


def patch(module: Any) -> None:
    guard.check(module, "sparse_attn_indexer_kpool", EXPECTED["sparse_attn_indexer_kpool"], SWITCH)
    guard.replace(module, "_merge_dcp_topk_global", EXPECTED["_merge_dcp_topk_global"], SWITCH, and_release)


def and_release(original: Callable[..., None]) -> Callable[..., None]:
    """The merge over context-parallel ranks is the last to read the scores. `row_starts` is given for prompts only: a decode step's
    scores end with the step anyway."""

    def _merge_dcp_topk_global(logits: Any, *rest: Any, row_starts: Any = None) -> None:
        original(logits, *rest, row_starts=row_starts)
        storage = logits.untyped_storage()
        if row_starts is not None and storage.resizable():
            storage.resize_(0)

    return _merge_dcp_topk_global
