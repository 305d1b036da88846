"""Each patch: the wrong behaviour without it, the right one with it, and no guessing where vLLM is not as expected."""

import ast
import hashlib
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")
import zmq
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
from vllm_glm_exl3 import patches
from vllm_glm_exl3.patches import default_tokens, drafter_hit, graph_profile, guard, no_store, pdl, spin, stops, tool_choice

from tests.overlay import scheduling
from tests.testbed import model

VLLM = Path(str(find_spec("vllm").origin)).parent  # type: ignore[union-attr]


def source(path: str, owner: str, name: str) -> str:
    """The text of a method in a file that cannot be imported here."""
    text = (VLLM / path).read_text()
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == owner]
    found = next(node for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name == name)
    first = min([found.lineno, *(mark.lineno for mark in found.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : found.end_lineno])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"))


# --- guard ---


class Owner:
    def ask(self) -> str:
        return "stock"

    @classmethod
    def shared(cls) -> str:
        return cls.__name__


def test_replacing_once() -> None:
    class Own(Owner):
        def ask(self) -> str:
            return "own"

    digest = guard.source_sha256(Own.ask)
    for _ in range(2):
        guard.replace(Own, "ask", digest, "X=0", lambda original: lambda self: f"patched {original(self)}")
    assert Own().ask() == "patched own"
    assert Owner().ask() == "stock"


def test_classmethods_stay_classmethods() -> None:
    class Own:
        @classmethod
        def shared(cls) -> str:
            return cls.__name__

    digest = guard.source_sha256(inspect.getattr_static(Own, "shared").__func__)
    guard.replace(Own, "shared", digest, "X=0", lambda original: lambda cls: original(cls) + "!")
    assert Own.shared() == "Own!"


def test_another_source_is_refused() -> None:
    with pytest.raises(
        guard.Mismatch, match=r"Owner\.ask has source \w{16}, and this patch is for 0123456789abcdef .*: X=0 leaves the patch out"
    ):
        guard.replace(Owner, "ask", "0123456789abcdef", "X=0", lambda original: original)
    assert Owner().ask() == "stock"


@pytest.mark.parametrize(
    ("path", "owner", "name", "expected"),
    [
        ("platforms/cuda.py", "CudaPlatformBase", "is_arch_support_pdl", pdl.EXPECTED),
        (
            "v1/worker/gpu_model_runner.py",
            "GPUModelRunner",
            "profile_cudagraph_memory",
            graph_profile.EXPECTED["vllm.v1.worker.gpu_model_runner"],
        ),
        (
            "v1/worker/gpu/model_runner.py",
            "GPUModelRunner",
            "profile_cudagraph_memory",
            graph_profile.EXPECTED["vllm.v1.worker.gpu.model_runner"],
        ),
        ("v1/core/kv_cache_coordinator.py", "KVCacheCoordinator", "cache_blocks", no_store.EXPECTED),
        ("v1/core/kv_cache_coordinator.py", "HybridKVCacheCoordinator", "find_longest_cache_hit", drafter_hit.EXPECTED),
        ("distributed/device_communicators/shm_broadcast.py", "SpinCondition", "__init__", spin.EXPECTED),
        ("v1/engine/detokenizer.py", "FastIncrementalDetokenizer", "__init__", stops.EXPECTED["__init__"]),
        ("v1/engine/detokenizer.py", "BaseIncrementalDetokenizer", "update", stops.EXPECTED["update"]),
        ("parser/engine/parser_engine.py", "ParserEngine", "adjust_request", tool_choice.EXPECTED),
        ("config/model.py", "ModelConfig", "get_diff_sampling_param", default_tokens.EXPECTED),
    ],
)
def test_this_vllm_is_the_one_they_were_written_for(path: str, owner: str, name: str, expected: str) -> None:
    assert hashlib.sha256(source(path, owner, name).encode()).hexdigest()[:16] == expected


def test_switches() -> None:
    def names(**environment: str) -> set[str]:
        return {patch.name for patch in patches.PATCHES if patch.wanted(environment)}

    assert names() == {"stops", "no_store", "indexer_logits", "tool_choice"}  # the other default, pdl, is for CUDA
    off = dict.fromkeys(("SUPPRESS_STOPS_IN_REASONING", "APC_NO_STORE", "RELEASE_INDEXER_LOGITS", "TOOL_CHOICE_NONE"), "0")
    off = {f"GLM53_{name}": value for name, value in off.items()}
    assert names(**off, GLM53_SPINWAIT_MS="16") == {"spin"}
    assert names(**off, DEFAULT_MAX_NEW_TOKENS="65536", GLM53_EXPOSE_CACHE_RESET="1", GLM53_DRAFTER_HIT="1") == {
        "default_tokens", "cache_reset", "drafter_hit"
    }  # fmt: skip
    assert names(**off, DEFAULT_MAX_NEW_TOKENS="", GLM53_EXPOSE_CACHE_RESET="0") == set()
    with pytest.raises(ValueError, match="GLM53_APC_NO_STORE='yes': must be 0 or 1"):
        names(GLM53_APC_NO_STORE="yes")
    for value in ("0", "1000001", "many"):
        with pytest.raises(ValueError, match="DEFAULT_MAX_NEW_TOKENS"):
            names(DEFAULT_MAX_NEW_TOKENS=value)
    for value in ("0", "1001", "16ms"):
        with pytest.raises(ValueError, match="GLM53_SPINWAIT_MS"):
            names(GLM53_SPINWAIT_MS=value)


# --- stops ---

STOCK = {name: getattr(inspect.getattr_static(owner, name), "__wrapped__", inspect.getattr_static(owner, name)) for owner, name in (
    (FastIncrementalDetokenizer, "__init__"), (FastIncrementalDetokenizer.__mro__[1], "update"))}  # fmt: skip
Stock = type("Stock", (FastIncrementalDetokenizer,), dict(STOCK))
Patched = type(
    "Patched",
    (FastIncrementalDetokenizer,),
    {"__init__": stops.with_markers(STOCK["__init__"]), "update": stops.with_thinking(STOCK["update"])},
)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")))


def detokenizer(kind: type, tokenizer: Any, prompt: str, stop: list[str]) -> Any:
    params = SamplingParams(stop=stop)
    ids = tokenizer._tokenizer.encode(prompt).ids
    return kind(tokenizer, EngineCoreRequest("r", ids, None, params, None, 0.0, None, None, None))


def feed(kind: type, tokenizer: Any, prompt: str, answer: str, stop: list[str], at_once: int = 1) -> tuple[str | None, str]:
    """The stop string that ended the answer, if one did, and the text so far."""
    machine = detokenizer(kind, tokenizer, prompt, stop)
    ids = tokenizer._tokenizer.encode(answer).ids
    for begin in range(0, len(ids), at_once):
        if stopped := machine.update(ids[begin : begin + at_once], False):
            return stopped, machine.output_text
    return None, machine.output_text


ANSWER = "I end here. </think>so it is. end it"


@pytest.mark.parametrize("at_once", [1, 3, 8, 100])
def test_stop_strings_wait_for_the_end_of_thinking(tokenizer: Any, at_once: int) -> None:
    assert feed(Stock, tokenizer, "hi<think>", ANSWER, ["end"], at_once) == ("end", "I ")
    stopped, text = feed(Patched, tokenizer, "hi<think>", ANSWER, ["end"], at_once)
    assert (stopped, text) == ("end", "I end here. so it is. ")


def test_thinking_that_the_model_opens_itself(tokenizer: Any) -> None:
    assert feed(Patched, tokenizer, "hi", "<think>end</think>the end", ["end"])[1] == "endthe "


@pytest.mark.parametrize("prompt", ["hi", "hi<think>x</think>"])
def test_without_thinking_nothing_changes(tokenizer: Any, prompt: str) -> None:
    assert feed(Patched, tokenizer, prompt, "the end", ["end"]) == feed(Stock, tokenizer, prompt, "the end", ["end"]) == ("end", "the ")
    assert feed(Patched, tokenizer, prompt, "the end", []) == (None, "the end")


def test_no_token_is_lost(tokenizer: Any) -> None:
    machine = detokenizer(Patched, tokenizer, "hi<think>", ["zzz"])
    ids = tokenizer._tokenizer.encode(ANSWER).ids
    machine.update(ids, True)  # the last token is a stop token
    assert machine.output_token_ids == ids


# --- the others ---


def test_no_store_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [5 + number % 300 for number in range(200)]

    def cached_after(**extra: Any) -> int:
        bench = scheduling.make(AsyncScheduler, folder)
        bench.add("first", prompt, answer=20, **extra)
        for _ in range(10):
            bench.step()
        return int(bench.scheduler.kv_cache_manager.get_computed_blocks(bench.add("second", prompt))[1])

    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    # making the engine's configuration has vLLM load its plugins, and so this patch
    assert [cached_after(no_store=value) for value in (1, "true", 0)] == [0, 0, 192]
    assert cached_after() == 192
    patched = inspect.getattr_static(KVCacheCoordinator, "cache_blocks")
    monkeypatch.setattr(KVCacheCoordinator, "cache_blocks", patched.__wrapped__)
    assert cached_after(no_store=1) == 192  # without the patch: twelve blocks of 16


def test_spin_wait() -> None:
    stock = getattr(SpinCondition.__init__, "__wrapped__", SpinCondition.__init__)
    kind = type("Short", (SpinCondition,), {"__init__": spin.with_seconds(stock, 0.016)})
    plain = type("Plain", (SpinCondition,), {"__init__": stock})
    context: Any = zmq.Context.instance()
    made = [one(is_reader=True, context=context, notify_address="inproc://none") for one in (plain, kind)]
    assert [one.busy_loop_s for one in made] == [1, 0.016]
    for socket in (value for one in made for value in vars(one).values() if isinstance(value, zmq.Socket)):
        socket.close(linger=0)


@pytest.mark.parametrize(
    ("capability", "stock", "patched"), [((9, 0), True, True), ((10, 0), True, True), ((12, 1), True, False), ((8, 9), False, False)]
)
def test_pdl(capability: tuple[int, int], stock: bool, patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    space: dict[str, Any] = {"torch": torch}
    exec("class Platform:\n" + source("platforms/cuda.py", "CudaPlatformBase", "is_arch_support_pdl"), space)
    original = space["Platform"].__dict__["is_arch_support_pdl"].__func__
    assert original(None) is stock
    assert pdl.without_sm12(original)(None) is patched


def test_graph_profile() -> None:
    assert graph_profile.unasked(lambda runner: 1 << 30)(None) == 0
    assert not graph_profile.wanted({})
    assert not graph_profile.wanted({graph_profile.VARIABLE: "1"})
