"""A prompt that the model has in its prefix cache and the drafter's window has lost: real scheduler and block pool, made-up tokens."""

import inspect
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm")
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm_glm_exl3.patches import drafter_hit

from tests.overlay import scheduling
from tests.testbed import model

SHARED = [5 + number % 300 for number in range(400)]  # tokens that both requests begin with: 25 blocks of 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"))


def window() -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=scheduling.BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=64)


def finish(bench: scheduling.Bench, name: str, prompt: list[int], answer: int = 8) -> None:
    bench.add(name, prompt, answer=answer)
    while name in bench.scheduler.requests:
        bench.step()


def used(folder: Path, others: int) -> tuple[int, scheduling.Bench]:
    """Tokens of the shared beginning that are found again after `others` requests of 160 tokens each, in a pool of 200 blocks."""
    bench = scheduling.make(AsyncScheduler, folder, [scheduling.full(), window()], 200)
    finish(bench, "first", SHARED + [400] * 200)
    for number in range(others):
        finish(bench, f"other{number}", [(11 * number + 7 * place) % 301 + 3 for place in range(160)])
    bench.add("again", SHARED + [401] * 100, answer=200)
    new = bench.step()["again"]  # one step takes the rest of the prompt, up to its budget
    found = bench.scheduler.requests["again"].num_computed_tokens - new
    return found, bench


def patch(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    found = inspect.getattr_static(HybridKVCacheCoordinator, "find_longest_cache_hit")
    stock = getattr(found, "__wrapped__", found)
    monkeypatch.setattr(HybridKVCacheCoordinator, "find_longest_cache_hit", drafter_hit.without_drafter(stock) if on else stock)


@pytest.mark.parametrize(("others", "stock", "patched"), [(0, 400, 400), (7, 368, 400), (8, 0, 400), (19, 0, 0)])
def test_how_much_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch, others: int, stock: int, patched: int) -> None:
    """7: part of the window is lost; 8: all of it; 19: the model's own blocks are, too."""
    patch(monkeypatch, on=False)
    assert used(folder, others)[0] == stock
    patch(monkeypatch, on=True)
    assert used(folder, others)[0] == patched


def test_the_pool_is_whole_afterwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that begins with an empty window runs past it to its end, and gives back all that it took."""
    patch(monkeypatch, on=True)
    count, bench = used(folder, 8)
    manager = bench.scheduler.kv_cache_manager
    ids = manager.get_block_ids("again")[1]
    assert (count, ids[:25]) == (400, [0] * 25)  # 0 is the empty block
    assert 0 not in ids[25:]
    while "again" in bench.scheduler.requests:
        bench.step()
    assert manager.block_pool.get_num_free_blocks() == 199  # all but the empty block
    finish(bench, "last", SHARED + [402] * 50)


def test_a_window_that_is_there_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, on=True)
    _, bench = used(folder, 0)
    ids = bench.scheduler.kv_cache_manager.get_block_ids("again")[1]
    assert ids[:21] == [0] * 21  # before the window, as ever
    assert 0 not in ids[21:25]
