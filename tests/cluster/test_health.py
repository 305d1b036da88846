"""Does the engine work? Asked of real servers on real sockets whose counters and answers are scripted."""

import time
from pathlib import Path

import pytest

from cluster import health, metrics
from cluster.health import Server
from cluster.metrics import Reading
from tests.cluster.served import Script, serving, vllm


def test_one_token() -> None:
    script = Script(lambda number: vllm(5))
    with serving(script) as server:
        found = health.engine(server, 5)
    assert found.works
    assert found.how.startswith("one token in 0.")
    assert script.asked == [{"model": "m", "prompt": "1", "max_tokens": 1, "temperature": 0}]


def test_frozen_counters_and_no_token_is_hung() -> None:
    with serving(Script(lambda number: vllm(5, running=2, waiting=1), wait_s=30)) as server:
        begin = time.monotonic()
        found = health.engine(server, 1.5)
    assert not found.works
    assert found.how == "one token was not generated within 1.5 s; 2 requests running, 1 waiting, and no counter moves"
    assert time.monotonic() - begin < 4


def test_requests_that_wait_while_none_runs() -> None:
    with serving(Script(lambda number: vllm(5, waiting=3), wait_s=30)) as server:
        found = health.engine(server, 1)
    assert (found.works, found.how) == (False, "one token was not generated within 1 s; 3 requests wait and none runs")


def test_busy_server_whose_counters_move_is_alive() -> None:
    """Our request waits behind others (MAX_NUM_SEQS): the counters prove that the engine works."""
    with serving(Script(lambda number: vllm(5 + number, running=4, waiting=1), wait_s=30)) as server:
        begin = time.monotonic()
        found = health.engine(server, 20)
    assert (found.works, found.how) == (True, "busy: 4 requests running, 1 waiting, counters move")
    assert time.monotonic() - begin < 5


def test_long_prefill_moves_only_the_use_of_the_cache() -> None:
    with serving(Script(lambda number: vllm(5, running=1, kv=number / 100), wait_s=30)) as server:
        assert health.engine(server, 20).works


def test_no_request_is_sent_while_others_are_served() -> None:
    script = Script(lambda number: vllm(50, running=1))
    with serving(script) as server:
        found = health.engine(server, 5, before=metrics.parse(vllm(40, running=1)))
        assert found.works
        assert script.asked == []
        assert health.engine(server, 5, before=metrics.parse(vllm(50, running=1))).works
    assert len(script.asked) == 1


def test_refused_token() -> None:
    with serving(Script(lambda number: vllm(5), status=500, answers=("the engine is dead",))) as server:
        found = health.engine(server, 5)
    assert not found.works
    assert found.how.startswith("one token was refused: status 500: ")
    with serving(Script(lambda number: vllm(5), status=429)) as server:
        assert health.engine(server, 5).works


def test_nobody_listens() -> None:
    found = health.engine(Server("http://127.0.0.1:1", "m"), 3)
    assert not found.works
    assert "/metrics does not answer either" in found.how


def test_recorded_vllm_metrics() -> None:
    text = (Path(__file__).parents[1] / "data/boot/vllm-metrics.txt").read_text()
    found = metrics.parse(text)
    assert found == Reading(generation=0, prompt=0, steps=0, kv_usage=0, running=0, waiting=0)


def test_both_spellings_and_both_engines() -> None:
    assert metrics.parse("vllm:gpu_cache_usage_perc 0.5") == Reading(kv_usage=0.5)
    assert metrics.parse("vllm:kv_cache_usage_perc 0.25") == Reading(kv_usage=0.25)
    llama = "llamacpp:tokens_predicted_total 7\nllamacpp:n_decode_total 9\nllamacpp:requests_processing 1\nllamacpp:requests_deferred 2"
    assert metrics.parse(llama) == Reading(generation=7, steps=9, running=1, waiting=2)
    engines = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 2.0'
    assert metrics.parse(engines) == Reading(running=3)
    assert metrics.parse("") is None
    assert metrics.parse("process_cpu_seconds_total 5\nvllm:other 3") is None


def test_positions_of_accepted_tokens() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    found = metrics.parse(f'{name}{{engine="0",position="1"}} 3.0\n{name}{{engine="0",position="0"}} 5.0\nvllm:generation_tokens_total 1')
    assert found is not None
    assert found.accepted_at == (5, 3)


@pytest.mark.parametrize(
    ("after", "works"),
    [
        (Reading(generation=5, running=1), False),
        (Reading(generation=6, running=1), True),
        (Reading(generation=5, running=9, waiting=9), False),  # more requests is no work
        (Reading(generation=None), False),
        (None, False),
    ],
)
def test_what_counts_as_moving(after: Reading | None, works: bool) -> None:
    assert metrics.moved(Reading(generation=5, running=1), after) is works
