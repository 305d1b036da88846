"""The client against a scripted server on real sockets: what is recorded is what was sent."""

import asyncio
import base64
import json
import time

import pytest

from bench.measure import measure
from bench.stream import Deadlines, Dialect, Endpoint, Request, stream
from bench.trace import Trace
from tests.fakes.builders import More, bursts, rate_limited, server_error, stream_error, uniform
from tests.fakes.script import Comment, Content, Cut, Done, Finish, Reasoning, Reply, Role, Scenario, Stall, Step, ToolCall, Usage, Wait
from tests.fakes.sse_server import ScriptedServer

ASK = Request("test-model", "hello", 64)


def send(reply: Reply, dialect: Dialect = "vllm", deadlines: Deadlines | None = None, request: Request = ASK) -> Trace:
    with ScriptedServer(Scenario([reply])) as server:
        return asyncio.run(stream(Endpoint(server.base_url, None, dialect), request, deadlines or Deadlines()))


def test_many_tokens_per_chunk_are_counted_from_usage() -> None:
    trace = send(Reply(bursts([(0.05, 1), (0.05, 4), (0.05, 4), (0.05, 3)], "per-chunk")))
    assert trace.error is None
    assert trace.kinds == "rccccfu"
    assert trace.tokens == (None, 1, 5, 9, 12, 12, None)
    found = measure(trace)
    assert (found.n_tokens, found.token_source) == (12, "chunk_usage")
    # 11 tokens in 0.15 s of script time; a busy machine stretches it, but chunks counted as tokens would be 20 tok/s
    assert found.decode_tok_s == pytest.approx(11 / 0.15, rel=0.5)


def test_token_ids_are_counted() -> None:
    found = measure(send(Reply(uniform(12, 4, 0.01, usage="final", more=More(token_ids=True)))))
    assert (found.n_tokens, found.token_source, found.first_chunk_tokens) == (12, "token_ids", 4)


def test_llama_timings_are_counted() -> None:
    found = measure(send(Reply(uniform(12, 4, 0.01, usage="timings-per-chunk")), "llamacpp"))
    assert (found.token_source, found.first_chunk_tokens) == ("chunk_timings", 4)


def test_final_usage_without_choices_and_cached_tokens() -> None:
    steps: list[Step] = [Role(), Content("a"), Content("b"), Finish("stop"), Usage(prompt=100, completion=2, cached=64), Done()]
    trace = send(Reply(steps))
    assert trace.kinds == "rccfu"
    assert trace.usage is not None
    assert (trace.usage.prompt_tokens, trace.usage.completion_tokens, trace.usage.cached_tokens) == (100, 2, 64)
    assert measure(trace).token_source == "final_usage"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_seen_in_both_spellings_and_starts_ttft(field: str) -> None:
    steps: list[Step] = [
        Role(), Wait(0.05), Reasoning("hm ", field=field),  # type: ignore[arg-type]
        Wait(0.1), Content("yes"), Finish(), Usage(), Done(),
    ]  # fmt: skip
    trace = send(Reply(steps))
    assert (trace.kinds, trace.reasoning, trace.text) == ("rkcfu", "hm ", "yes")
    ttft = measure(trace).ttft_s
    assert ttft is not None
    assert 0.05 <= ttft < 0.14


def test_tool_calls_hold_tokens() -> None:
    trace = send(Reply([Role(), ToolCall("f", "{}", tokens=3), Finish("tool_calls"), Usage(), Done()]))
    assert trace.kinds == "rtfu"


def test_comments_are_no_chunks_and_other_choices_are_not_ours() -> None:
    trace = send(Reply([Comment(), Role(), Comment(), Content("a"), Content("other", index=1), Finish(), Usage(), Done()]))
    assert (trace.kinds, trace.text) == ("rcefu", "a")


@pytest.mark.parametrize("framing", ["event", "bytes:1", "bytes:7", "joined:3", "random:5"])
def test_multi_byte_text_survives_any_framing(framing: str) -> None:
    steps: list[Step] = [Role(), Content("Grüße, "), Content("世界 🌍"), Finish(), Usage(), Done()]
    trace = send(Reply(steps, framing=framing))
    assert (trace.text, trace.kinds) == ("Grüße, 世界 🌍", "rccfu")


def test_ttft_and_gaps_are_those_of_the_server() -> None:
    with ScriptedServer(Scenario([Reply(uniform(30, 1, 0.02, 0.3, usage="per-chunk"))])) as server:
        trace = asyncio.run(stream(Endpoint(server.base_url, None, "vllm"), ASK, Deadlines()))
        received = server.requests()[-1].t_received_ns
        sent = [record.t_sent_ns for record in server.sent() if record.kind == "content"]
    found = measure(trace)
    assert found.ttft_s is not None
    assert found.itl_p50_s is not None
    # the client's clock starts when it sends, so its TTFT holds the server's own and at most a few ms of connecting and parsing
    server_ttft = (sent[0] - received) / 1e9
    # and the server's clock is read after its send returned: on a busy machine the client may have the bytes before that
    assert server_ttft - 0.1 <= found.ttft_s < server_ttft + 0.15
    assert found.ttft_s >= 0.3
    assert found.itl_p50_s == pytest.approx(0.02, abs=0.01)
    assert found.decode_tok_s == pytest.approx(29 / ((sent[-1] - sent[0]) / 1e9), rel=0.1)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (server_error(), "HTTP 500"),
        (rate_limited(1), "HTTP 429"),
        (Reply([Role(), Content("a"), Cut("reset")]), "broken off after 2 chunks"),
        (Reply([Role(), Content("a"), Cut("close")]), "broken off after 2 chunks"),
        (Reply([Role(), Content("a"), Done()]), "without a finish reason"),
        (Reply([Role(), Content("a"), stream_error("engine is dead")]), "engine is dead"),
        (Reply([Role(), Content("a"), Stall()]), "stalled: no data for 0.3 s after 2 chunks"),
        (Reply([Role(), Content("a"), Stall(comment_every_s=0.05)]), "stalled: no data for 0.3 s after 2 chunks"),
        (Reply([Stall()]), "stalled: no data for 0.6 s after 0 chunks"),
    ],
    ids=["500", "429", "reset", "close", "no-finish", "error-event", "stall", "stall-keep-alive", "silent"],
)
def test_faults_end_the_trace_with_one_reason(reply: Reply, message: str) -> None:
    begin = time.monotonic()
    trace = send(reply, deadlines=Deadlines(first_s=0.6, stall_s=0.3))
    assert trace.error is not None
    assert message in trace.error
    assert time.monotonic() - begin < 5


def test_a_slow_first_token_is_no_stall() -> None:
    trace = send(Reply([Wait(0.4), Role(), Content("a"), Finish(), Usage(), Done()], early_head=False), deadlines=Deadlines(stall_s=0.2))
    assert trace.error is None


@pytest.mark.parametrize(
    ("dialect", "has", "lacks"),
    [
        ("vllm", "return_token_ids", "timings_per_token"),
        ("llamacpp", "timings_per_token", "return_token_ids"),
        ("openai", "messages", "chat_template_kwargs"),
    ],
)
def test_each_dialect_is_asked_only_what_it_knows(dialect: Dialect, has: str, lacks: str) -> None:
    with ScriptedServer(Scenario([Reply(uniform(2))])) as server:
        asyncio.run(stream(Endpoint(server.base_url, "s3cret", dialect), ASK, Deadlines()))
        seen = server.requests()[-1]
    assert isinstance(seen.body, dict)
    assert has in seen.body
    assert lacks not in seen.body
    assert seen.body["stream_options"]["include_usage"] is True
    assert "extra_body" not in seen.body
    assert seen.headers["authorization"] == "Bearer s3cret"


def test_an_image_travels_as_data_url() -> None:
    picture = base64.b64encode(b"png").decode()
    content = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    with ScriptedServer(Scenario([Reply(uniform(2))])) as server:
        asyncio.run(stream(Endpoint(server.base_url), Request("test-model", content, 5), Deadlines()))
        assert picture in json.dumps(server.requests()[-1].body)
