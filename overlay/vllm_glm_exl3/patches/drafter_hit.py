"""The drafter's cache has no say in how much of a prompt is found in the prefix cache: GLM53_DRAFTER_HIT=1.

vLLM takes the longest prefix that every group of layers still has. The drafter's sliding window gives its blocks back while a request is
running, so they are the first to be overwritten, and a prompt that the model itself has whole is then computed again. With this, the
drafter starts without its window: its drafts are poor until the window has passed, and what the model says is checked as always.

Off unless asked for: that DFlash2's kernels read the empty block as harmlessly as the scheduler hands it out was not seen on a GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_glm_exl3.patches import guard

SWITCH = "GLM53_DRAFTER_HIT=0"
EXPECTED = "0d109ac725cf33e2"


def wanted(environment: Mapping[str, str]) -> bool:
    return guard.flag(environment, "GLM53_DRAFTER_HIT", "0")


def apply(environment: Mapping[str, str]) -> None:
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

    guard.replace(HybridKVCacheCoordinator, "find_longest_cache_hit", EXPECTED, SWITCH, without_drafter)


def without_drafter(original: Callable[..., Any]) -> Callable[..., Any]:
    def find_longest_cache_hit(self: Any, block_hashes: Any, max_cache_hit_length: int) -> Any:
        whole = self.attention_groups
        own, drafters = split(whole)
        if not own or not drafters:
            return original(self, block_hashes, max_cache_hit_length)
        self.attention_groups = own
        try:
            blocks, length, uncached = original(self, block_hashes, max_cache_hit_length)
        finally:
            self.attention_groups = whole
        found = list(blocks)
        for group in drafters:
            for number, its in zip(group.group_ids, window(self, group, block_hashes, length), strict=True):
                found[number] = its
        return tuple(found), length, uncached

    return find_longest_cache_hit


def split(groups: list[Any]) -> tuple[list[Any], list[Any]]:
    """The model's groups and the drafter's. GLM-5.3-Flash has no sliding-window layers of its own, and its drafter no others."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    drafters = [group for group in groups if type(group.spec) is SlidingWindowSpec]
    return [group for group in groups if group not in drafters], drafters


def window(self: Any, group: Any, block_hashes: Any, length: int) -> list[list[Any]]:
    """The blocks of each of the group's layers up to `length` tokens: as cached, if the whole window is, else empty ones."""
    manager = self.single_type_managers[group.group_ids[0]]
    blocks, found = group.manager_cls.find_longest_cache_hit(
        block_hashes=block_hashes, max_length=length, kv_cache_group_ids=group.group_ids, block_pool=manager.block_pool,
        kv_cache_spec=group.spec, drop_eagle_block=False, alignment_tokens=self._cache_hit_alignment_tokens,
        dcp_world_size=manager.dcp_world_size, pcp_world_size=manager.pcp_world_size,
    )  # fmt: skip
    if found == length:
        return list(blocks)
    return [[manager.block_pool.null_block] * -(-length // manager.block_size) for _ in group.group_ids]
