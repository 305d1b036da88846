"""What is read from a server, and the figures that follow; the distributions are those of vllm_like.py."""

import math
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ablit.served import ask, measure, panel
from ablit.served.ask import Said, Server
from bench.counters import Counters
from bench.errors import BadRequest, BenchError
from bench.kld import served as captures
from bench.kld import windows as texts
from tests.ablit.served.hands import PROMPTS
from tests.ablit.served.vllm_like import EDITED, KLD, STOCK, TV, Script, serving


def test_panel_by_hand(tmp_path: Path) -> None:
    script = Script()
    with serving(script) as url:
        question = captures.Question(url, k=3, per_stratum=1)
        stock = captures.capture(question, tmp_path / "a.npz", print)
        script.edited = True
        edited = captures.capture(question, tmp_path / "b.npz", print)
    found = panel.facts(stock, edited)
    assert found.form == "top-k"
    assert [window.positions for window in found.windows] == [512] * 5
    assert [window.kld / 512 for window in found.windows] == pytest.approx([KLD] * 5, abs=1e-6)
    assert [window.tv / 512 for window in found.windows] == pytest.approx([TV] * 5, abs=1e-6)
    assert [found.median, found.p99, found.windows[0].kld_max] == pytest.approx([KLD] * 3, abs=1e-6)
    assert found.windows[0].agree == 512
    assert found.texts == f"{texts.load().name} {texts.load().sha256[:12]}"  # as the in-process panel calls them
    floor = panel.floor(panel.facts(stock, stock), "b9")
    assert (floor.mean, floor.max_window_mean, floor.boot) == (0.0, 0.0, "b9")


def test_total_variation_when_the_lists_differ() -> None:
    """p: 1 has 0.6, 2 has 0.3; q: 1 has 0.5, 3 has 0.4. Only token 1 is common: 0.1 there and 0.1 in the bucket, half of the sum."""
    p_ids, q_ids = np.array([[1, 2]], np.int32), np.array([[1, 3]], np.int32)
    found = panel.total_variation(p_ids, q_ids, np.log([[0.6, 0.3]]), np.log([[0.5, 0.4]]))
    assert found.tolist() == pytest.approx([0.1])


def said(*shares: float, text: str = "Yes.") -> Said:
    logs = tuple(math.log(share) for share in shares)
    return Said(text=text, ended=True, tokens=2, ids=tuple(range(1, len(shares) + 1)), logprobs=logs)


def test_first_tokens() -> None:
    assert panel.first_tokens([said(*STOCK)], [said(*EDITED)]) == pytest.approx((KLD,), abs=1e-6)
    assert panel.first_tokens([said(*STOCK)], [said()]) == ()
    assert panel.first_tokens([said()], [said()]) == ()


def test_answers() -> None:
    script = Script(say=lambda prompt: (f"{prompt[:3]}!", prompt.startswith("Why")))
    with serving(script) as url:
        found = ask.answers(Server(url, "tiny", "key"), PROMPTS, 16, 3, lambda line: None)
    assert [(each.text, each.ended) for each in found] == [("Why!", True), ("Wha!", False), ("Why!", True), ("Wha!", False)]
    assert found[0].ids == (1, 2, 3)
    assert found[0].logprobs == pytest.approx([math.log(share) for share in STOCK])
    path, body = script.asked[0]
    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["max_tokens"], body["top_logprobs"], body["model"]) == (0, 16, 3, "tiny")
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def best(token: str) -> dict[str, object]:
    return {"content": [{"top_logprobs": [{"token": token, "logprob": -1.0}]}]}


@pytest.mark.parametrize("logprobs", [None, {"content": []}, best(" a"), best("5")])  # the text "5" is not token 5
def test_log_probabilities_that_are_not_there_or_without_ids(logprobs: object) -> None:
    answer = {
        "choices": [{"message": {"content": None}, "finish_reason": "length", "logprobs": logprobs}],
        "usage": {"completion_tokens": 3},
    }
    assert ask.said(answer) == Said(text="", ended=False, tokens=3)


def test_answers_of_another_form_and_none_at_all() -> None:
    with pytest.raises(BenchError, match="another form: KeyError"):
        ask.said({"choices": [{"finish_reason": "stop"}], "usage": {}})
    with pytest.raises(BenchError, match="another form: AttributeError"):
        ask.said({"choices": ["Yes."], "usage": {"completion_tokens": 1}})
    with pytest.raises(BenchError, match="no usable answer"):
        ask.answers(Server("http://127.0.0.1:9", "tiny"), PROMPTS, 1, 1, print)


def test_a_server_that_dies_within_its_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as beside:
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}", "tiny")
        asked = beside.submit(ask.answers, server, PROMPTS, 1, 1, print)
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"choices": [')
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):  # a close with the rest of the request unread would be a reset
                pass
        with pytest.raises(BenchError, match="no usable answer: IncompleteRead"):
            asked.result()


def test_counters() -> None:
    before = Counters(dialect="vllm", drafts=10, draft_tokens=20, accepted_tokens=5, accepted_per_position=(4, 1))
    after = Counters(dialect="vllm", drafts=30, draft_tokens=60, accepted_tokens=35, accepted_per_position=(20, 15))
    found = measure.speculation(before, after)
    assert found is not None
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.accepted_per_position) == (20, 40, 30, (16, 14))
    assert found.length == 2.5
    assert measure.speculation(before, before) is None
    assert measure.speculation(None, after) is None
    assert measure.speculation(Counters(dialect="vllm"), Counters(dialect="vllm")) is None


def test_unknown_classifier() -> None:
    with pytest.raises(BadRequest, match="no classifier called polite\ntry: brief, casual, hedged, disclaims"):
        measure.Asked((PROMPTS,), "polite", 1, 1, 1, 0).refuse_unknown()
