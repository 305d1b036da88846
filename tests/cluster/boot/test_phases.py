"""Phases from logs: recorded ones of the CPU testbed, and GPU lines as vLLM 0.32's sources print them."""

import pytest

from cluster.boot import phases
from cluster.boot.phases import ORDER
from tests.cluster.boot.recorded import lines, said

STARTED = 1795986454.0  # 2026-11-29 21:07:34 UTC, when docker was asked to run


def test_recorded_head() -> None:
    found = phases.advance(phases.begin(0, STARTED), lines("vllm-head.log"), "vllm")
    assert (found.phase, found.done, found.total) == ("api", None, None)
    # by hand from the time stamps: 27.609 container, 94.106 imports, 7.397 ranks meet, 2.578 weights, 0.004 KV, 9.390 warm-up
    assert list(found.durations_s().items()) == [
        ("container", 27.609), ("process", 94.106), ("join", 7.397), ("load", 2.578), ("kv", 0.004), ("warmup", 9.39),
    ]  # fmt: skip


def test_recorded_worker_never_sees_the_end() -> None:
    """Only rank 0's engine core knows when the warm-up begins."""
    found = phases.advance(phases.begin(1, STARTED), lines("vllm-worker.log"), "vllm")
    assert found.phase == "kv"
    assert found.since == pytest.approx(1795986585.688081)
    assert list(found.durations_s()) == ["container", "process", "join", "load"]


def test_shards_while_they_load() -> None:
    log = lines("vllm-head.log")
    until = next(number for number, line in enumerate(log) if "100% Completed" in line.text)
    found = phases.advance(phases.begin(0, STARTED), log[: until + 1], "vllm")
    assert (found.phase, found.done, found.total) == ("load", 1, 1)


GPU = (
    ("(Worker pid=7) INFO world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:29521 backend=nccl", "join"),
    ("(Worker_TP0 pid=7) INFO 11-29 21:08:09 [gpu_model_runner.py:5040] Starting to load model /root/.cache/x...", "load"),
    ("Loading safetensors checkpoint shards:  14% Completed | 12/83 [00:15<01:28,  1.24s/it]", "load"),
    ("(Worker_TP0 pid=7) INFO 11-29 21:09:09 [gpu_model_runner.py:5150] Model loading took 79.65 GiB memory and 61.3 seconds", "profile"),
    ("INFO 11-29 21:09:19 [backends.py:1167] Dynamo bytecode transform time: 9.83 s", "profile"),
    ("(Worker_TP0 pid=7) INFO 11-29 21:10:09 [gpu_worker.py:760] Available KV cache memory: 13.56 GiB", "kv"),
    ("(EngineCore pid=5) INFO 11-29 21:10:10 [kv_cache_utils.py:2327] GPU KV cache size: 913,408 tokens, Maximum concurrency", "warmup"),
    ("Capturing CUDA graphs (decode, FULL):  45%|####      | 5/11 [00:01<00:01,  4.20it/s]", "warmup"),
    ("(EngineCore pid=5) INFO init engine (profile, create kv cache, warmup model) took 80.2 s (compilation: 20.1 s)", "api"),
)


@pytest.mark.parametrize("count", range(1, len(GPU) + 1))
def test_gpu_lines(count: int) -> None:
    texts = [text for text, _ in GPU[:count]]
    assert phases.advance(phases.begin(0, 99), said(*texts), "vllm").phase == GPU[count - 1][1]


def test_counts_and_time_to_go() -> None:
    found = phases.advance(phases.begin(0, 99), said(*(text for text, _ in GPU[:3])), "vllm")
    assert (found.done, found.total, found.since) == (12, 83, 101)
    assert found.eta_s(113) == 71  # 12 shards in 12 s, 71 to go
    assert phases.begin(0, 99).eta_s(113) is None
    graphs = phases.advance(found, said(*(text for text, _ in GPU[3:8]), at=110), "vllm")
    assert (graphs.phase, graphs.done, graphs.total) == ("warmup", 5, 11)


def test_instant_tensor_counts_too() -> None:
    """The fast loader's bar, described in the launcher study: the same format under another name."""
    log = said(
        "Starting to load model x...", "Loading safetensors using InstantTensor loader:  50% Completed | 1000/2000 [00:20<00:20, 50it/s]"
    )
    assert phases.advance(phases.begin(0, 99), log, "vllm").done == 1000


def test_no_phase_is_left_backwards() -> None:
    """The drafter's weights come after the model's."""
    log = said(GPU[3][0], "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 3it/s]", "Starting to load model y...")
    found = phases.advance(phases.begin(0, 99), log, "vllm")
    assert (found.phase, found.since, found.done) == ("profile", 100, None)


def test_lines_that_say_nothing_are_passed_over() -> None:
    found = phases.advance(phases.begin(0, 99), said("", "some text", "loading model 'x'", "| 3/9 ["), "vllm")
    assert (found.phase, found.since) == ("process", 100)


def test_llama_server() -> None:
    texts = (
        "0.00.004.828 I srv          init: loading model",
        "0.00.004.885 I srv    load_model: loading model '/cache/SmolLM2-135M-Instruct.Q4_1.gguf'",
        "0.01.258.948 I cmn          init: llama threadpool init, n_threads = 1",
        "0.01.374.963 I srv          init: model loaded",
    )
    seen = [phases.advance(phases.begin(0, 99, "process"), said(*texts[:count]), "llama").phase for count in range(1, 5)]
    assert seen == ["process", "load", "warmup", "api"]


def test_every_mark_names_a_phase() -> None:
    assert {phase for marks in phases.MARKS.values() for _, phase in marks} <= set(ORDER)


def test_times_in_words() -> None:
    assert phases.told({"container": 0.42, "load": 9.04, "api": 0.01}) == "container 0.4, weights 9.0"
