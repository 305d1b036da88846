"""Counter texts in both dialects, written as the servers write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.counters import Counters, delta, parse
from bench.summarize import acceptance

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a,b} c"} 1.0
vllm:num_requests_running{engine="1",model_name="a,b} c"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 23.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 1e+03
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 64.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 24.0
""" + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{i}"}} {float(n)}\n'
    for i, n in enumerate((8, 6, 4, 2, 1, 1, 1, 1, 0))
)

LLAMA = """\
llamacpp:prompt_tokens_total 84
llamacpp:prompt_tokens_cached_total 24
llamacpp:tokens_predicted_total 320
llamacpp:requests_processing 0
llamacpp:requests_deferred 0
llamacpp:spec_decode_num_draft_tokens_total 75
llamacpp:spec_decode_num_accepted_tokens_total 13
llamacpp:spec_decode_num_drafts_total 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1
"""


def test_vllm_sums_engines_and_finds_every_position() -> None:
    assert parse(VLLM) == Counters(
        dialect="vllm", generation_tokens=123, prompt_tokens=1000, cached_tokens=64, running=3, waiting=0,
        drafts=10, draft_tokens=90, accepted_tokens=24, accepted_per_position=(8, 6, 4, 2, 1, 1, 1, 1, 0),
    )  # fmt: skip


def test_llama_prompt_tokens_include_the_cached_ones() -> None:
    found = parse(LLAMA)
    assert found is not None
    assert (found.dialect, found.prompt_tokens, found.cached_tokens) == ("llamacpp", 108, 24)
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.accepted_per_position) == (4, 75, 13, (3, 1))


def test_a_server_without_speculation_has_none_of_its_counters() -> None:
    found = parse('vllm:generation_tokens_total{engine="0"} 5\n')
    assert found == Counters(dialect="vllm", generation_tokens=5)


@pytest.mark.parametrize("text", ["", "# only comments\n", "process_cpu_seconds_total 5\n", "<html>not found</html>", "vllm:x{"])
def test_other_text_is_no_reading(text: str) -> None:
    assert parse(text) is None


def test_values_that_are_no_finite_number_are_passed_over() -> None:
    found = parse("llamacpp:requests_processing NaN\nllamacpp:requests_deferred +Inf\nllamacpp:tokens_predicted_total 7 1700000000000\n")
    assert found == Counters(dialect="llamacpp", generation_tokens=7)


@given(st.text(alphabet='vllm:spec{}="\\,# \n0123456789.+eNaInf', max_size=200))
def test_any_text_gives_a_reading_or_none(text: str) -> None:
    parse(text)
    parse("vllm:" + text)


def test_delta_and_acceptance_by_hand() -> None:
    before = Counters(dialect="vllm", generation_tokens=100, drafts=10, draft_tokens=70, accepted_tokens=20, accepted_per_position=(8, 6))
    after = Counters(
        dialect="vllm", generation_tokens=150, drafts=20, draft_tokens=140, accepted_tokens=55, accepted_per_position=(17, 11, 4)
    )
    moved = delta(before, after)
    assert (moved.generation_tokens, moved.drafts, moved.accepted_tokens) == (50, 10, 35)
    assert moved.accepted_per_position == (9, 5, 4)
    found = acceptance([(before, after)])
    assert found is not None
    assert (found.acceptance_rate, found.acceptance_length) == (0.5, 4.5)
    assert found.per_position == (0.9, 0.5, 0.4)


def test_a_counter_that_went_backwards_is_unknown_not_negative() -> None:
    before = Counters(dialect="vllm", generation_tokens=100, accepted_per_position=(5,))
    after = Counters(dialect="vllm", generation_tokens=3, accepted_per_position=(1,))
    assert delta(before, after).generation_tokens is None
    assert delta(before, after).accepted_per_position is None


def test_nothing_drafted_is_no_acceptance() -> None:
    same = Counters(dialect="vllm", drafts=5, draft_tokens=35, accepted_tokens=9)
    assert acceptance([(same, same)]) is None
    assert acceptance([(None, None)]) is None
