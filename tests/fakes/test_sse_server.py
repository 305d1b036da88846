"""The scripted server does on the wire what its script says. Real sockets, http.client and bare ones."""

import errno
import json
import os
import re
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fakes.builders import (
    More,
    bursts,
    count_reply,
    error_reply,
    model_not_found,
    rate_limited,
    server_error,
    split_raw,
    stream_error,
    text_reply,
    uniform,
)
from tests.fakes.plain_client import (
    ask,
    body,
    chunks,
    documents,
    eventually,
    one_stream,
    raw,
    request,
    series,
    streamed,
    until,
)
from tests.fakes.script import (
    Comment,
    Content,
    Cut,
    Done,
    Finish,
    Raw,
    Reasoning,
    Reply,
    Role,
    Scenario,
    Stall,
    Step,
    TimingsUsage,
    ToolCall,
    Usage,
    Wait,
)
from tests.fakes.sse_server import ScriptedServer

HEAD = '{"id":"chatcmpl-0","object":"chat.completion.chunk","created":1760000000,"model":"test-model",'
EVERY_STEP: list[Step] = [
    Role(usage="auto"),
    Wait(0.001),
    Reasoning("hm", 1, "reasoning_content"),
    Content("né", 2, token_ids=[7, 8], usage="auto", timings="auto"),
    Content("other", 1, index=1),
    ToolCall("add", '{"a":', 1),
    ToolCall(None, "1}", 1),
    Comment("ping"),
    Raw.of(": €\n\n".encode(), tokens=3),
    Finish("tool_calls"),
    Usage(5, "auto", cached=2, with_choices=True),
    TimingsUsage(draft_n=4, draft_n_accepted=3),
    Done(),
    Stall(0.5),
]


def test_events_are_these_bytes() -> None:
    steps: list[Step] = [Role(), Content("né", 2), Comment("ping"), Finish("length"), Usage(5, cached=2), Done()]
    usage = '"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":'
    choice = '"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n'
    assert [piece.decode() for piece in streamed(Reply(steps))] == [
        "data: " + HEAD + choice % ('{"role":"assistant","content":""}', "null"),
        "data: " + HEAD + choice % ('{"content":"né"}', "null"),
        ": ping\n\n",
        "data: " + HEAD + choice % ("{}", '"length"'),
        "data: " + HEAD + '"choices":[],' + usage + '{"cached_tokens":2}}}\n\n',
        "data: [DONE]\n\n",
    ]


def test_framing_moves_borders_only() -> None:
    framings = ("event", "bytes:1", "bytes:2", "bytes:3", "joined:2", "random:4", "random:4", "random:5")
    reply = Reply(EVERY_STEP[:-1])
    with ScriptedServer(Scenario([replace(reply, framing=name, when=f"<{i}>") for i, name in enumerate(framings)])) as s:
        events, ones, twos, threes, pairs, *dice = [one_stream(s, f"<{i}>") for i in range(len(framings))]
    whole = b"".join(events)
    same = {re.sub(rb"chatcmpl-.", b"", b"".join(pieces)) for pieces in (events, ones, twos, threes, pairs, *dice)}
    assert len(same) == 1
    assert (len(ones), max(map(len, twos)), max(map(len, threes))) == (len(whole), 2, 3)
    assert any(piece[-1] == 0xC3 for piece in twos + threes)  # cut inside the two bytes of an e acute
    assert list(map(len, pairs)) == [sum(map(len, events[i : i + 2])) for i in range(0, len(events), 2)]
    assert list(map(len, dice[0])) == list(map(len, dice[1])) != list(map(len, dice[2]))


def test_line_ends_and_raw_borders() -> None:
    euro = split_raw("data: €\n\n".encode(), [7])
    replies = [Reply([Done(), Comment("x")], line_end="\r\n"), Reply(euro), Reply([stream_error("broke")])]
    with ScriptedServer(Scenario(replies)) as server:
        assert one_stream(server) == [b"data: [DONE]\r\n\r\n", b": x\r\n\r\n"]
        assert one_stream(server) == [b"data: \xe2", b"\x82\xac\n\n"]
        assert one_stream(server)[0].startswith(b'data: {"error":{"message":"broke"')


def test_dialects_of_the_chunks() -> None:
    docs = documents(streamed(Reply(EVERY_STEP[:-1], prompt_tokens=9, cached_tokens=4)))
    assert docs[0]["usage"] == {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    assert docs[1]["choices"][0]["delta"] == {"reasoning_content": "hm"}
    assert docs[2]["choices"][0]["token_ids"] == [7, 8]
    assert docs[2]["usage"]["completion_tokens"] == 3
    assert (docs[2]["timings"]["predicted_n"], docs[2]["timings"]["prompt_ms"]) == (3, 1.0)
    assert docs[3]["choices"][0]["index"] == 1
    call = docs[4]["choices"][0]["delta"]["tool_calls"][0]
    assert call == {"index": 0, "id": "call-0", "type": "function", "function": {"name": "add", "arguments": '{"a":'}}
    assert docs[5]["choices"][0]["delta"]["tool_calls"][0] == {"index": 0, "function": {"arguments": "1}"}}
    assert docs[7]["choices"][0]["delta"] == {}
    assert docs[7]["usage"]["completion_tokens"] == 9  # 1 + 2 + 1 + 1 + 1 + 3 raw
    timings = docs[8]["timings"]
    names = ("predicted_n", "prompt_n", "cache_n", "draft_n", "draft_n_accepted")
    assert [timings[name] for name in names] == [9, 5, 4, 4, 3]


def test_not_streamed() -> None:
    with ScriptedServer(Scenario([Reply(EVERY_STEP[:-1])])) as server:
        for data in (body(stream=False), {k: v for k, v in body().items() if k != "stream"}):
            answer = json.loads(request(server, data)[2])
        assert answer["object"] == "chat.completion"
        assert answer["usage"]["completion_tokens"] == 9
        first, second = answer["choices"]
        assert (first["message"]["content"], first["message"]["reasoning_content"]) == ("né", "hm")
        assert first["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}
        assert (first["finish_reason"], second["message"]["content"]) == ("tool_calls", "other")
        assert [(r.step, r.kind, r.tokens) for r in server.sent()] == [(-1, "json", 9)] * 2


def test_cuts() -> None:
    cuts = (Cut("reset"), Cut("close"))
    with ScriptedServer(Scenario([Reply([Content("a"), Wait(0.05), cut]) for cut in cuts])) as server:
        for tail, nothing_more in ((ConnectionResetError, errno.ECONNRESET), (EOFError, b"")):
            with raw(server) as sock:
                until(sock, b"\r\n\r\n")
                until(sock, b"\n\n\r\n")
                with pytest.raises(tail) as caught:
                    until(sock, b"never")
                assert caught.value.args[0] == nothing_more  # in particular no last HTTP chunk
        assert [record.kind for record in server.sent()] == ["content", "cut"] * 2
        assert [end.outcome for end in server.ended()] == ["cut", "cut"]


def test_stall_until_either_side_leaves() -> None:
    with ScriptedServer(Scenario([Reply([Content("a"), Stall(0.05)]), Reply([Stall()])])) as server:
        with raw(server) as sock:
            until(sock, b": keep-alive\n\n")
            until(sock, b": keep-alive\n\n")
            assert series(server)['vllm:num_requests_running{engine="0",model_name="test-model"}'] == 1
        eventually(server.ended)
        assert (server.ended()[0].outcome, server.ended()[0].tokens) == ("client_gone", 1)
        with raw(server) as sock:
            until(sock, b"\r\n\r\n")
            sock.settimeout(0.15)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            server.stop()
            sock.settimeout(5)
            assert sock.recv(1) == b""
    assert server.ended()[1].outcome == "stopped"


def test_what_is_no_request_is_refused() -> None:
    with ScriptedServer(Scenario([count_reply(1)])) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(b"hello\r\n\r\n")
            assert until(sock, b"\r\n") == b"HTTP/1.1 400 Bad Request\r\n"
        assert server.requests() == []


def test_head_waits_for_the_first_event_if_told() -> None:
    early = Reply([Wait(0.2), Content("a")])
    with ScriptedServer(Scenario([early, replace(early, early_head=False)])) as server:
        for shortest, longest in ((0.0, 0.15), (0.19, 5.0)):
            begin = time.monotonic()
            with raw(server) as sock:
                until(sock, b"\r\n\r\n")
                assert shortest <= time.monotonic() - begin < longest


def test_errors_and_order() -> None:
    replies = [server_error(), rate_limited(7), model_not_found("m"), error_reply(503, "loading"), count_reply(2)]
    with ScriptedServer(Scenario(replies, health=[503, 503, 200])) as server:
        assert [request(server, path="/health")[0] for _ in range(4)] == [503, 503, 200, 200]
        answers = [request(server, body()) for _ in range(6)]
        assert [status for status, _, _ in answers] == [500, 429, 404, 503, 200, 200]
        assert answers[1][1]["Retry-After"] == "7"
        assert set(json.loads(answers[2][2])["error"]) == {"message", "type", "param", "code"}
        assert "does not exist" in request(server, body(model="other"))[2]
        assert request(server, path="/v2")[0] == 404
        assert request(server, ["no object"])[0] == 400
    with ScriptedServer(Scenario([replace(server_error(), error="<html>"), count_reply(1)], order="cycle")) as server:
        answers = [request(server, body()) for _ in range(3)]
        assert [status for status, _, _ in answers] == [500, 200, 500]
        assert answers[0][2] == "<html>"


def test_key_models_and_selection() -> None:
    replies = [text_reply("Paris", when="capital"), text_reply("main"), text_reply("warm", when="warm-up")]
    with ScriptedServer(Scenario(replies, models=["a", "b"], api_key="k", max_model_len=512)) as server:
        status, _, text = request(server, body(), key="wrong")
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
        assert request(server, path="/v1/models")[0] == 401
        assert [request(server, path=path)[0] for path in ("/health", "/metrics")] == [200, 200]
        models = json.loads(request(server, path="/v1/models", key="k")[2])["data"]
        assert [(m["id"], m["max_model_len"]) for m in models] == [("a", 512), ("b", 512)]
        asked = ["the capital?", "x", "a warm-up", "y"]
        texts = [json.loads(request(server, body(t, False, "a"), key="k")[2]) for t in asked]
        assert [t["choices"][0]["message"]["content"] for t in texts] == ["Paris", "main", "warm", "main"]
        assert server.requests()[-1].body == body("y", False, "a")
        assert server.requests()[-1].headers["authorization"] == "Bearer k"


def test_keep_alive_connection() -> None:
    with ScriptedServer(Scenario([count_reply(2)])) as server, raw(server) as sock:
        for _ in range(2):
            before = time.monotonic_ns()
            until(sock, b"\r\n\r\n")
            assert len(list(chunks(sock))) == 6
            ask(sock, body())
        until(sock, b"\r\n\r\n")
        first, second, third = server.requests()
        assert first.connection == second.connection == third.connection
        assert (first.index, first.method, first.path) == (0, "POST", "/v1/chat/completions")
        assert first.headers["x-two"] == "a, b"
        assert before < third.t_received_ns < time.monotonic_ns()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what a TCP socket receives")
def test_a_request_is_dated_by_its_arrival_though_it_is_read_late() -> None:
    """The server stands still while the request comes in."""
    with ScriptedServer(Scenario([count_reply(2)])) as server, raw(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a part of the request waits until another is acknowledged
        list(chunks_after_head(sock))
        os.kill(server.pid, signal.SIGSTOP)
        before = time.monotonic_ns()
        ask(sock, body())
        after = time.monotonic_ns()
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGCONT)
        list(chunks_after_head(sock))
        late = server.requests()[-1]
    assert before - 1_000_000 < late.t_came_ns < after + 1_000_000  # clocks are read together to 20 us
    assert late.t_received_ns > after + 290_000_000


def chunks_after_head(sock: socket.socket) -> Iterator[bytes]:
    until(sock, b"\r\n\r\n")
    return chunks(sock)


def test_sends_are_on_time() -> None:
    with ScriptedServer(Scenario([Reply(uniform(250, gap_s=0.002, first_s=0.02))])) as server, raw(server) as sock:
        until(sock, b"\r\n\r\n")
        arrivals = []
        for _ in range(251):
            until(sock, b"\n\n\r\n")
            arrivals.append(time.monotonic_ns())
        start = server.requests()[0].t_received_ns
        sent = [record for record in server.sent() if record.kind == "content"]
    assert [record.due_ns - start for record in sent] == [20_000_000 + 2_000_000 * i for i in range(250)]
    assert [record.tokens for record in sent] == list(range(1, 251))
    late_s = [record.late_s for record in sent]
    assert min(late_s) >= 0
    assert statistics.median(late_s) < 0.001
    assert statistics.median(late_s[-50:]) < 0.001  # lateness does not add up
    travel = [got - record.t_sent_ns for got, record in zip(arrivals[1:], sent, strict=True)]
    assert statistics.median(travel) < 1_000_000


def test_streams_run_side_by_side() -> None:
    with ScriptedServer(Scenario([Reply(bursts([(0.1, 1), (0.2, 7)], "per-chunk", More(token_ids=True)))])) as server:
        threads = [threading.Thread(target=request, args=(server, body())) for _ in range(8)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.3 <= time.monotonic() - begin < 0.3 * 8  # one after the other
        assert [(end.outcome, end.tokens) for end in server.ended()] == [("complete", 8)] * 8
        assert {record.request for record in server.sent()} == set(range(8))
