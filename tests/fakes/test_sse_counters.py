"""The counters of the scripted server move by what it has served."""

import pytest

from tests.fakes.builders import (
    uniform,
)
from tests.fakes.plain_client import body, eventually, raw, request, series, until
from tests.fakes.script import (
    Cut,
    Reply,
    Scenario,
    Spec,
    Stall,
)
from tests.fakes.sse_server import ScriptedServer


def test_vllm_counters() -> None:
    spec = Spec(drafts=10, draft_tokens=70, accepted=30, per_position=[9, 5])
    reply = Reply(uniform(40, 4), prompt_tokens=100, cached_tokens=64, spec=spec, foreign_tokens=5)
    with ScriptedServer(Scenario([reply], engines=2, initial_running=3, busy_scrapes=1)) as server:
        before = series(server)
        request(server, body())
        request(server, body(stream=False))
        after = series(server)
    moves: dict[str, float] = {}
    for name, value in after.items():
        key = name.replace('engine="1",', 'engine="0",')
        moves[key] = moves.get(key, 0) + value - before[name]
    label = '{engine="0",model_name="test-model"%s}'
    expected = {"generation_tokens_total": 90, "prompt_tokens_total": 200, "prefix_cache_queries_total": 200}
    expected |= {"prefix_cache_hits_total": 128, "num_requests_running": -3, "num_requests_waiting": 0}
    expected |= {"spec_decode_num_drafts_total": 20, "spec_decode_num_draft_tokens_total": 140}
    expected |= {"spec_decode_num_accepted_tokens_total": 60, "prompt_tokens_created": 0}
    assert {name: moves[f"vllm:{name}" + label % ""] for name in expected} == expected
    per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [moves[per_pos + label % f',position="{i}"'] for i in (0, 1)] == [18, 10]


def test_llamacpp_counters_and_none() -> None:
    spec = Spec(drafts=3, draft_tokens=9, accepted=4, per_position=[3, 1])
    reply = Reply(uniform(8, usage="timings"), prompt_tokens=100, cached_tokens=64, spec=spec)
    with ScriptedServer(Scenario([reply], metrics="llamacpp")) as server:
        assert '"draft_n":9,"draft_n_accepted":4' in request(server, body())[2]
        assert series(server) == {
            "llamacpp:prompt_tokens_total": 36,
            "llamacpp:prompt_tokens_cached_total": 64,
            "llamacpp:tokens_predicted_total": 8,
            "llamacpp:requests_processing": 0,
            "llamacpp:requests_deferred": 0,
            "llamacpp:spec_decode_num_drafts_total": 3,
            "llamacpp:spec_decode_num_draft_tokens_total": 9,
            "llamacpp:spec_decode_num_accepted_tokens_total": 4,
            'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 3,
            'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 1,
        }
    with ScriptedServer(Scenario([reply], metrics=None)) as server:
        assert request(server, path="/metrics")[0] == 404


def test_counters_move_with_the_stream() -> None:
    reply = Reply([*uniform(10, 5, usage="none")[:3], Cut("close")], prompt_tokens=7, spec=Spec(4, 28, 6))
    with ScriptedServer(Scenario([reply])) as server, raw(server) as sock:
        with pytest.raises(EOFError):
            until(sock, b"never")
        label = '{engine="0",model_name="test-model"}'
        now = series(server)
        assert now[f"vllm:generation_tokens_total{label}"] == 5
        assert now[f"vllm:num_requests_running{label}"] == 0


def test_counters_show_a_request_while_it_runs_and_after() -> None:
    reply = Reply([*uniform(10, 5, usage="none")[:3], Stall()], prompt_tokens=7)
    label = '{engine="0",model_name="test-model"}'
    with ScriptedServer(Scenario([reply])) as server:
        with raw(server) as sock:
            until(sock, b'tok "},"logprobs":null,"finish_reason":null}]}\n\n\r\n')
            now = series(server)
            assert (now[f"vllm:generation_tokens_total{label}"], now[f"vllm:prompt_tokens_total{label}"]) == (5, 7)
            assert now[f"vllm:num_requests_running{label}"] == 1
        eventually(lambda: series(server)[f"vllm:num_requests_running{label}"] == 0)
        assert series(server)[f"vllm:generation_tokens_total{label}"] == 5
