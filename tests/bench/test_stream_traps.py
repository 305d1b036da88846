"""What other tools got wrong on real streams, each with the right value. The numbers are those of the list of known bugs."""

import pytest

from bench import lean
from bench.groups import group
from bench.measure import RequestMetrics, measure
from bench.request import Deadlines, Endpoint, Request
from tests.bench.test_groups import lane
from tests.fakes.builders import More, bursts, smoothed, uniform
from tests.fakes.script import Comment, Content, Done, Finish, Reasoning, Reply, Role, Scenario, Step, Usage, Wait
from tests.fakes.sse_server import ScriptedServer

# Server times are exact to a ms; a busy machine may delay a reading by tens of ms.
SLACK_S = 0.25


def measured(steps: list[Step]) -> RequestMetrics:
    with ScriptedServer(Scenario([Reply(steps)])) as server:
        trace = lean.run(lean.stream(Endpoint(server.base_url, None, "vllm"), Request("test-model", "x", 64), Deadlines()))
    assert trace.error is None
    return measure(trace)


def near(value: float | None, right: float) -> bool:
    return value is not None and right - 0.005 <= value <= right + SLACK_S


def test_1_chunks_are_not_counted_as_tokens() -> None:
    """Speculative decoding: 5 chunks of 8 tokens, 0.1 s apart, are 80 tok/s and not 10."""
    found = measured(bursts([(0.1, 8)] * 5, "per-chunk"))
    assert found.n_tokens == 40
    assert found.decode_tok_s == pytest.approx(32 / 0.4, rel=0.4)
    assert found.tokens_per_chunk == 8


def test_2_the_count_does_not_depend_on_where_chunks_are_cut() -> None:
    counts = {measured(uniform(12, size, usage="per-chunk")).n_tokens for size in (1, 3, 12)}
    assert counts == {12}


def test_4_5_the_best_rate_of_lanes_is_not_below_the_average() -> None:
    """Two lanes, a token and then 8 each 0.1 s: 64 tokens in the 0.4 s in which both decode. The 8 chunks of that time are 20 a second,
    which is below the average of the 66 tokens."""
    chunks = [(0.5, 1), (0.6, 9), (0.7, 17), (0.8, 25), (0.9, 33)]
    found = group([lane(0.0, *chunks), lane(0.0, *chunks)])
    assert found.steady_tok_s == pytest.approx(160)
    assert found.wall_tok_s == pytest.approx(66 / 0.9)


def test_6_a_gap_between_chunks_is_no_time_per_token() -> None:
    found = measured(bursts([(0.1, 4)] * 4, "per-chunk"))
    assert found.itl_p50_s == pytest.approx(0.1, abs=0.05)
    assert found.tpot_s == pytest.approx(0.3 / 15, abs=0.01)


def test_7_a_large_first_chunk_does_not_inflate_the_rate() -> None:
    """64 tokens at once, then 4 in 0.4 s: 10 tok/s and not 168."""
    found = measured(bursts([(0.1, 64), *[(0.1, 1)] * 4], "per-chunk"))
    assert found.first_chunk_tokens == 64
    assert found.decode_tok_s == pytest.approx(10, rel=0.4)


def test_8_an_empty_role_delta_is_no_first_token() -> None:
    found = measured([Role(), Wait(0.3), Content("a"), Wait(0.05), Content("b"), Finish(), Usage(), Done()])
    assert near(found.ttft_s, 0.3)
    assert found.ttfr_s is not None
    assert found.ttfr_s < 0.29


def test_9_what_a_router_sends_while_it_waits_is_no_first_token() -> None:
    """Its own role chunk at once, comments to keep the connection, and then the engine's role chunk."""
    found = measured(
        [Role(), Comment(), Wait(0.2), Comment(), Role(), Wait(0.1), Content("a"), Wait(0.1), Content("b"), Finish(), Usage(), Done()]
    )
    assert near(found.ttft_s, 0.3)
    assert (found.n_tokens, found.first_chunk_tokens) == (2, None)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_10_13_the_first_token_may_be_a_thought(field: str) -> None:
    thought = Reasoning("hm ", field=field, usage="auto")  # type: ignore[arg-type]
    thoughts: list[Step] = [step for _ in range(5) for step in (thought, Wait(0.1))]
    found = measured([Role(), Wait(0.1), *thoughts, Content("a", usage="auto"), Finish(), Usage(), Done()])
    assert near(found.ttft_s, 0.1)
    assert found.n_tokens == 6
    assert found.decode_tok_s == pytest.approx(5 / 0.5, rel=0.4)  # and not of the answer's one token alone


def test_11_an_answer_of_thoughts_alone_has_tokens() -> None:
    found = measured([Role(), Reasoning("a"), Wait(0.1), Reasoning("b"), Finish("length"), Usage(), Done()])
    assert (found.n_tokens, found.token_source) == (2, "final_usage")
    assert found.decode_tok_s is not None


def test_12_hidden_thoughts_do_not_make_the_answer_fast() -> None:
    """400 tokens are thought in silence, then 5 come in 0.4 s: 10 tok/s, as the running usage says, and not 1,000."""
    shown: list[Step] = [step for _ in range(4) for step in (Wait(0.1), Content("a", usage="auto"))]
    found = measured([Role(), Wait(0.2), Content("a", 401, usage="auto"), *shown, Finish(), Usage(), Done()])
    assert found.decode_tok_s == pytest.approx(10, rel=0.4)


def test_16_without_usage_the_tokens_are_unknown() -> None:
    found = measured(uniform(8, 2, 0.02, usage="none"))
    assert (found.n_tokens, found.token_source, found.decode_tok_s, found.tpot_s) == (None, None, None, None)
    assert found.ttft_s is not None


def test_16_token_ids_count_where_usage_is_missing() -> None:
    found = measured(uniform(8, 2, 0.02, usage="none", more=More(token_ids=True)))
    assert (found.n_tokens, found.token_source) == (8, "token_ids")


def test_17_the_usage_chunk_moves_no_time() -> None:
    found = measured([Role(), Wait(0.05), Content("a"), Wait(0.05), Content("b"), Finish(), Wait(0.5), Usage(), Done()])
    assert near(found.ttft_s, 0.05)
    assert near(found.e2el_s, 0.1)  # the usage chunk comes at 0.6 s


def test_18_smoothed_tokens_are_not_faster_than_the_engine() -> None:
    found = measured(smoothed(13, 4, 0.1, usage="per-chunk"))
    assert found.decode_tok_s == pytest.approx(40, rel=0.4)  # 4 tokens each 0.1 s
