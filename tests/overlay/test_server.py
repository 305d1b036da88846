"""What a user of the server meets: tool_choice none, requests without a limit, cache resets. A real `vllm serve` with the plugin (45 s
on two quiet cores); what vLLM does without it is shown by its own code where that is enough."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
from fastapi import FastAPI
from transformers import PreTrainedTokenizerFast
from vllm.config import ModelConfig
from vllm.entrypoints import serve
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.parser.engine.parser_engine import ParserEngine
from vllm.parser.glm47_moe import Glm47MoeParser
from vllm_glm_exl3.patches import cache_reset, default_tokens, tool_choice

from tests.overlay.generate import engine_environment
from tests.testbed import model

pytestmark = [pytest.mark.timeout(600)]

CALLS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
SPECIAL = (*model.SPECIAL, *CALLS)
OPENING = SPECIAL.index("<tool_call>")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
LIMIT = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with GLM's marks of a tool call among its tokens."""
    made = model.make(tmp_path_factory.mktemp("model"))
    (made / "tokenizer.json").write_text(json.dumps(model.tokenizer(SPECIAL)))
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    port = 18931
    words = f"--host 127.0.0.1 --port {port} --served-model-name tiny --dtype float32 --enforce-eager --max-model-len 256 --max-num-seqs 4"
    words += " --enable-prompt-tokens-details --tool-call-parser glm47 --enable-auto-tool-choice --reasoning-parser glm45"
    settings = engine_environment(1) | {"DEFAULT_MAX_NEW_TOKENS": str(LIMIT), "GLM53_EXPOSE_CACHE_RESET": "1"}
    settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *words.split()]
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | settings) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 400
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"vllm serve did not come up\n{log.read_text()[-4000:]}")


def post(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        content: dict[str, Any] = json.loads(answer.read() or b"{}")
    return content


def chat(server: str, **more: Any) -> dict[str, Any]:
    return post(f"{server}/v1/chat/completions", {**ASKED, **more})


# --- tool_choice none ---

KEEN = {"max_tokens": 12, "ignore_eos": True, "logit_bias": {str(OPENING): 100}, "chat_template_kwargs": {"enable_thinking": False}}


def test_a_model_that_wants_to_call_answers_in_words(server: str) -> None:
    """Without tools nothing holds it back; with tools and tool_choice none it is held back, also in a stream."""
    assert chat(server, **KEEN, return_token_ids=True)["choices"][0]["token_ids"] == [OPENING] * 12
    choice = chat(server, **KEEN, tools=TOOLS, tool_choice="none", return_token_ids=True)["choices"][0]
    assert OPENING not in choice["token_ids"]
    assert len(choice["token_ids"]) == 12
    assert choice["message"]["content"]
    assert not choice["message"].get("tool_calls")
    body = {**ASKED, **KEEN, "tools": TOOLS, "tool_choice": "none", "stream": True}
    request = urllib.request.Request(f"{server}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        lines = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    assert "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines) == choice["message"]["content"]


def test_tool_choice_auto_may_call(server: str) -> None:
    assert OPENING in chat(server, **KEEN, tools=TOOLS, tool_choice="auto", return_token_ids=True)["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def parser(folder: Path) -> Any:
    return Glm47MoeParser(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")), chat_template_kwargs={"thinking": False})


def chat_request(**more: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(**{**ASKED, **more})


def test_vllm_drops_the_call_and_leaves_nothing(parser: Any) -> None:
    said = "<tool_call>look</tool_call>"
    request = chat_request(tools=TOOLS, tool_choice="none")
    assert parser.parse(said, request, True, parser.model_tokenizer.encode(said)) == (None, None, None)
    stock = getattr(ParserEngine.adjust_request, "__wrapped__", ParserEngine.adjust_request)
    assert stock(parser, request).bad_words == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": TOOLS, "tool_choice": "none"}, ["<tool_call>"]),
        ({"tools": TOOLS, "tool_choice": "none", "bad_words": ["x", "<tool_call>"]}, ["x", "<tool_call>"]),
        ({"tools": TOOLS, "tool_choice": "auto"}, []),
        ({"tools": TOOLS}, []),
        ({}, []),
    ],
)
def test_which_requests_get_the_bad_word(parser: Any, more: dict[str, Any], words: list[str]) -> None:
    adjust = tool_choice.without_calls(lambda _, request: request)
    assert adjust(parser, chat_request(**more)).bad_words == words


def test_responses_stay_as_they_are(parser: Any) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {}, "strict": False}]
    request = ResponsesRequest(input="hi", tools=tools, tool_choice="none")
    assert tool_choice.without_calls(lambda _, request: request)(parser, request) == request


# --- requests without a limit ---


def test_only_requests_without_a_limit_get_the_default(server: str) -> None:
    counts = [
        chat(server, ignore_eos=True, **more)["usage"]["completion_tokens"]
        for more in ({}, {"max_tokens": 30}, {"max_completion_tokens": 30}, {"max_tokens": 3})
    ]
    assert counts == [LIMIT, 30, 30, 3]


def limits(patched: bool, generation: str = "auto", override: dict[str, Any] | None = None) -> list[int]:
    """The limits that vLLM's chat gives requests with none, 30 and 3, of a model for 256 tokens, after a prompt of 6."""
    stock = getattr(ModelConfig.get_diff_sampling_param, "__wrapped__", ModelConfig.get_diff_sampling_param)
    method = default_tokens.with_default(stock, LIMIT) if patched else stock
    config = SimpleNamespace(generation_config=generation, override_generation_config=override or {}, try_get_generation_config=dict)
    default = method(config)
    ceiling = (override or {}).get("max_new_tokens")  # as its serving code takes it for "auto" and "vllm"
    return [get_max_tokens(256, asked, 6, default, ceiling) for asked in (None, 30, 3)]


def test_vllm_gives_the_whole_context_or_a_ceiling() -> None:
    assert limits(patched=False) == [250, 30, 3]
    assert limits(patched=False, override={"max_new_tokens": LIMIT}) == [LIMIT, LIMIT, 3]
    assert limits(patched=True) == limits(patched=True, generation="vllm") == [LIMIT, 30, 3]


def test_an_override_is_left_as_it_is() -> None:
    assert limits(patched=True, override={"max_new_tokens": 20}) == [20, 20, 3]


def test_where_it_would_be_a_ceiling_it_is_refused() -> None:
    with pytest.raises(ValueError, match="DEFAULT_MAX_NEW_TOKENS would limit every request with --generation-config /other"):
        limits(patched=True, generation="/other")


# --- cache resets ---


def test_a_cold_cache_when_asked_for(server: str) -> None:
    asked = {"messages": [{"role": "user", "content": "one and the same long question, " * 8}], "max_tokens": 1}

    def cached() -> int:
        return int((chat(server, **asked)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    text = [cached(), cached()]
    assert post(f"{server}/reset_prefix_cache") == {"success": True}
    assert [*text, cached()] == [0, text[1], 0]
    assert text[1] > 100


def test_nothing_else_of_the_developer_mode(server: str) -> None:
    for route in ("reset_mm_cache", "reset_encoder_cache"):
        post(f"{server}/{route}")
    for route in ("collective_rpc", "sleep", "server_info"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(f"{server}/{route}")


def test_without_it_there_is_no_route() -> None:
    stock = getattr(serve.register_vllm_serve_api_routers, "__wrapped__", serve.register_vllm_serve_api_routers)
    apps = [FastAPI(), FastAPI()]
    for app in apps:
        app.state.args = SimpleNamespace()
    stock(apps[0])
    cache_reset.with_cache_routes(stock)(apps[1])
    paths = [{getattr(route, "path", "") for route in app.routes} for app in apps]
    assert paths[1] - paths[0] == {"/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"}
