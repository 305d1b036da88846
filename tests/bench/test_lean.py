"""The lean client says of every stream what the official client says, and what the script meant, on both event loops."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bench import openai_stream
from bench.trace import Trace
from tests.bench.streams import CASES, DIFFER, FRAMED, FRAMED_NAMES, LOOPS, scenario, traced
from tests.fakes.sse_server import ScriptedServer


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(scenario()) as server:
        yield server


@dataclass(frozen=True)
class Said:
    """What two clients must agree on."""

    kinds: str
    tokens: tuple[int | None, ...]
    by: str | None
    texts: tuple[str, str]
    usage: object
    finish: str | None
    error: str | None

    @classmethod
    def of(cls, trace: Trace) -> "Said":
        error = trace.error
        if error and error.startswith(("HTTP", "broken off")):
            error = error.partition(":")[0]
        usage = trace.usage.model_dump() if trace.usage else None
        return cls(trace.kinds, trace.tokens, trace.chunk_counts, (trace.text, trace.reasoning), usage, trace.finish_reason, error)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", [name for name in CASES if name not in DIFFER])
def test_it_says_what_the_script_meant(server: ScriptedServer, name: str, loop: str) -> None:
    _, kinds, text, error = CASES[name]
    trace = traced(server, name, loop=loop)
    assert (trace.kinds, trace.text) == (kinds, text)
    assert (trace.error or "").startswith(error or "")
    assert (trace.error is None) == (error is None)


@pytest.mark.parametrize("name", [*(name for name in CASES if name not in DIFFER), *(f"{w} {n}" for w in FRAMED for n in FRAMED_NAMES)])
def test_it_says_what_the_official_client_says(server: ScriptedServer, name: str) -> None:
    official = traced(server, name, openai_stream.stream, "asyncio")
    assert Said.of(traced(server, name)) == Said.of(official)


def test_counts_and_usage_by_hand(server: ScriptedServer) -> None:
    assert traced(server, "bursts").tokens == (None, 1, 5, 5, None)
    assert traced(server, "token ids").tokens == (None, 4, 6, None, None)
    assert traced(server, "timings").chunk_counts == "timings"
    cached = traced(server, "cached").usage
    assert cached is not None
    assert (cached.prompt_tokens, cached.completion_tokens, cached.cached_tokens, cached.reasoning_tokens) == (100, 1, 64, None)
    assert traced(server, "reasoning").reasoning == "hm"
    assert traced(server, "no usage").usage is None


def test_half_characters_of_two_chunks_are_joined(server: ScriptedServer) -> None:
    trace = traced(server, "surrogates")
    assert (trace.text, trace.kinds, trace.error) == ("😀", "ccfu", None)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_stall_is_found_when_it_is_due(server: ScriptedServer, loop: str) -> None:
    """0.4 s after the last chunk, though 0.8 s were allowed to the first."""
    trace = traced(server, "stall", loop=loop)
    assert 0.39 <= trace.t_end_s - trace.t_s[-1] < 0.75


def test_a_body_without_events_is_named(server: ScriptedServer) -> None:
    trace = traced(server, "an empty body")
    assert trace.error == "no event stream: the body starts with b': keep-alive\\n\\n'"


def test_server_messages_are_in_the_error(server: ScriptedServer) -> None:
    assert traced(server, "404").error == "HTTP 404: no such model"
    assert traced(server, "400 as text").error == "HTTP 400: <html>bad</html>"
    assert "engine is dead" in str(traced(server, "error event").error)
    assert traced(server, "close").error == "broken off after 2 chunks: BadResponse: the connection closed inside the answer"
