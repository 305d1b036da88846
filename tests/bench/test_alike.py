"""Chunks that are read by a template give what the full parser gives of them, whatever a server sends."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import alike
from bench.alike import Alike
from bench.chunks import Reader, ServerFault
from bench.columns import Columns
from bench.http1 import Response
from bench.sse import Decoder

FEW = settings(max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
AFTER = b"\n\n\r\n"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "_KNOWN", {})


def framed(payload: bytes) -> bytes:
    return b"%x\r\ndata: %b%b" % (len(payload) + 8, payload, AFTER)


START = b'\r\ndata: {"id":"chatcmpl-1","created":1761111117,"model":"m","choices":[{"index":0,"delta":{"content":"'


def _resized(data: bytes, more: int) -> bytes:
    """A chunk that states a wrong size."""
    size, _, rest = data.partition(b"\r\n")
    return b"%x\r\n%b" % (int(size, 16) + more, rest)


def _marked(data: bytes) -> bytes:
    """A chunk that holds the mark of the start in place of the start, and states the size that it has."""
    rest = data.partition(START)[2]
    return b"%x\x01%b" % (len(rest) - len(AFTER) + 1, rest)


def chunk(text: str, count: int | None = None, ids: Any = None, **more: Any) -> bytes:
    document: dict[str, Any] = {
        "id": "chatcmpl-1", "created": 1761111117, "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None} | ({"token_ids": ids} if ids else {})],
    }  # fmt: skip
    if count is not None:
        document["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + count, "completion_tokens": count}
    return json.dumps(document | more, separators=(",", ":"), ensure_ascii=False).encode()


class Both:
    """One stream read in full, and the same with templates: as one read each, or many at once."""

    def __init__(self, first: bytes) -> None:
        self.full, self.short = Reader(Columns(0), None), Reader(Columns(0), None)
        self.full.read(0, first)
        self.short.read(0, first)

    def one(self, at_ns: int, payload: bytes) -> bool:
        """True: the template took it."""
        data = framed(payload)
        taken = self.short.alike.read(at_ns, data) == len(data)
        self._in_full(at_ns, payload, taken)
        return taken

    def many(self, payloads: list[bytes]) -> bool:
        taken = self.short.alike.read_many(list(range(len(payloads))), [framed(payload) for payload in payloads])
        for at_ns, payload in enumerate(payloads):
            self._in_full(at_ns, payload, taken)
        return taken

    def _in_full(self, at_ns: int, payload: bytes, taken: bool) -> None:
        failure = self._failure(self.full, at_ns, payload)
        if taken:
            assert failure is None, f"the full parser refuses what the template took: {failure}"
        else:
            assert self._failure(self.short, at_ns, payload) == failure

    @staticmethod
    def _failure(reader: Reader, at_ns: int, payload: bytes) -> str | None:
        try:
            reader.read(at_ns, payload)
        except (ValueError, ServerFault) as error:
            return type(error).__name__
        return None

    def assert_same(self) -> None:
        for reader in (self.full, self.short):
            reader.finish()
        mine, theirs = self.short.columns, self.full.columns
        assert (mine.at_ns, mine.kinds, mine.tokens, mine.counted_by) == (theirs.at_ns, theirs.kinds, theirs.tokens, theirs.counted_by)
        assert ("".join(mine.text), "".join(mine.reasoning)) == ("".join(theirs.text), "".join(theirs.reasoning))
        assert (mine.usage, mine.ids) == (theirs.usage, theirs.ids)


def test_plain_chunks_are_taken_and_give_these_rows() -> None:
    both = Both(chunk("a", 1, [5]))
    assert both.one(10, chunk("b", 2, [6]))
    assert both.one(20, chunk("cd", 4, [7, 8]))
    assert both.many([chunk("e", 5, [9]), chunk("f", 6, [10]), chunk("gü", 9, [1, 2, 3])])
    both.assert_same()
    columns = both.short.columns
    assert (columns.at_ns, columns.tokens) == ([0, 10, 20, 0, 1, 2], [1, 2, 4, 5, 6, 9])
    assert ("".join(columns.kinds), "".join(columns.text)) == ("cccccc", "abcdefgü")
    assert columns.usage is not None
    assert (columns.usage.completion_tokens, columns.usage.prompt_tokens) == (9, 7)
    assert columns.ids == 9


def test_a_later_usage_that_was_read_in_full_counts() -> None:
    both = Both(chunk("a", 1))
    assert both.one(1, chunk("b", 2))
    both._in_full(2, b'{"choices":[],"usage":{"completion_tokens":99}}', taken=False)
    both.assert_same()
    assert both.short.columns.usage is not None
    assert both.short.columns.usage.completion_tokens == 99


@pytest.mark.parametrize("other", [
    chunk("b", 2).replace(b'"index":0', b'"index":1'),
    chunk("", 2),
    chunk("b", 2).replace(b'"b"', b'"\\x"'),
    chunk("b", 2).replace(b'"b"', b'"\xff"'),
    chunk("b", 2).replace(b'"b"', b'"\n"'),
    chunk("b", 2).replace(b'"b"', b'"\x01"'),
    chunk("b", 2).replace(b'"completion_tokens":2', b'"completion_tokens":-2'),
    chunk("b", 2).replace(b'"completion_tokens":2', b'"completion_tokens":02'),
    chunk("b", 2).replace(b'"completion_tokens":2', b'"completion_tokens":2.0'),
    chunk("b", 2).replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
    chunk("b", 2).replace(b'"content"', b'"reasoning"'),
    chunk("b"),
    chunk("b", 2, error="x"),
], ids=range(13))  # fmt: skip
def test_other_chunks_are_left_to_the_full_parser(other: bytes) -> None:
    both = Both(chunk("a", 1))
    assert not both.one(1, other)
    assert not both.many([chunk("c", 3), other, chunk("d", 4)])
    both.assert_same()


@pytest.mark.parametrize("damage", [
    lambda reads: [reads[0][:-1], *reads[1:]],
    lambda reads: [b"1" + reads[0], *reads[1:]],
    lambda reads: [reads[0] + reads[1], reads[2][:40], reads[2][40:] + b"0\r\n\r\n"],
    lambda reads: [reads[0].replace(b'"b"', b'"b\x01"'), *reads[1:]],
    lambda reads: [_resized(reads[0], 1), _resized(reads[1], -1), *reads[2:]],
    lambda reads: [reads[0].replace(START, b"\x01"), *reads[1:]],
    lambda reads: [_marked(reads[0]), *reads[1:]],
    lambda reads: [b"z" + _resized(reads[0], 1), *reads[1:]],
], ids=range(8))  # fmt: skip
def test_many_reads_are_taken_only_if_each_byte_is_as_it_should_be(damage: Callable[[list[bytes]], list[bytes]]) -> None:
    reads = [framed(chunk(text, count)) for text, count in (("b", 2), ("c", 3), ("d", 4))]
    damaged = damage(reads)
    assert damaged != reads
    both = Both(chunk("a", 1))
    assert both.one(1, chunk("x", 1))
    before = list(both.short.columns.at_ns)
    assert not both.short.alike.read_many([1, 2, 3, 4][: len(damaged)], damaged)
    assert both.short.columns.at_ns == before
    assert both.short.alike.read_many([1, 2, 3], reads)


def test_a_chunk_of_another_size_than_it_states_is_left_to_the_full_parser() -> None:
    both = Both(chunk("a", 1))
    for more in (1, -1):
        assert both.short.alike.read(1, _resized(framed(chunk("b", 2)), more)) == 0
    assert both.short.alike.read(1, framed(chunk("b", 2))) == len(framed(chunk("b", 2)))


def test_a_chunk_is_stamped_by_the_read_that_holds_its_last_byte() -> None:
    data = b"".join(framed(chunk(text, count)) for text, count in (("b", 2), ("c", 3), ("d", 4)))
    third = len(data) // 3
    both = Both(chunk("a", 1))
    both.one(1, chunk("x", 1))
    assert both.short.alike.read_many([10, 20, 30, 40], [data[:5], data[5 : third + 9], data[third + 9 : -1], data[-1:]])
    assert both.short.columns.at_ns == [0, 1, 20, 30, 40]


def test_a_nought_that_says_nothing_is_no_place_for_a_number() -> None:
    both = Both(chunk("a", None, None, usage=0))
    assert both.one(1, chunk("b", None, None, usage=0))
    assert not both.one(2, chunk("c", None, None, usage=5))


def test_a_shape_that_is_known_is_not_learned_again() -> None:
    Both(chunk("a", 1))
    assert len(alike._KNOWN) == 1
    Both(chunk("b", 2).replace(b"chatcmpl-1", b"chatcmpl-2"))
    assert len(alike._KNOWN) == 1
    for number in range(40):
        Both(chunk("a", 1, None, **{f"x{number}": 1}))
    assert len(alike._KNOWN) == alike._MOST_KNOWN


@pytest.mark.parametrize("first", [
    chunk("a", 1).replace(b'"id"', b'"model"'),  # a name twice
    chunk("a", 1).replace(b'"index":0', b'"index":0,"delta":{"content":"b"}'),
    chunk("a", 1, [1]).replace(b"[1]", b"[[1]]"),
    chunk("a", 1, [1]).replace(b"[1]", b"[-1]"),
], ids=range(4))  # fmt: skip
def test_what_is_ambiguous_is_never_learned(first: bytes) -> None:
    Both(first)
    assert alike._KNOWN == {}


LEAF = st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats() | st.text(max_size=4)
TEXT = st.text(max_size=12) | st.text(alphabet='ab"\\\n\t\u0000é€😀\ud83d', max_size=6)
SOME = st.fixed_dictionaries({}, optional={"prompt_tokens": LEAF, "completion_tokens": LEAF | st.integers(0, 99), "x": LEAF})


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Chunks of nearly any shape that the full parser might take."""
    delta = draw(st.fixed_dictionaries({}, optional={"content": TEXT, "reasoning": TEXT | LEAF, "role": LEAF, "tool_calls": LEAF}))
    choice = draw(st.fixed_dictionaries({}, optional={"token_ids": LEAF | st.lists(st.integers(-1, 9), max_size=3), "finish_reason": LEAF,
                                                      "logprobs": LEAF | st.lists(LEAF, max_size=2)}))  # fmt: skip
    top = draw(st.fixed_dictionaries({}, optional={"id": LEAF, "created": LEAF, "usage": LEAF | SOME, "timings": LEAF | SOME.map(
        lambda one: {"predicted_n": one.get("completion_tokens", 1), "predicted_ms": 1.5}), "error": st.none()}))  # fmt: skip
    body = {"choices": [{"index": 0, "delta": delta, **choice}]}
    return body | top if draw(st.booleans()) else top | body


def varied(document: Any, draw: Callable[..., Any]) -> Any:
    """The same shape with other leaves: now and then of another kind."""
    if isinstance(document, dict):
        return {key: varied(value, draw) for key, value in document.items()}
    if isinstance(document, list):
        return [varied(value, draw) for value in document]
    if draw(st.integers(0, 9)) == 0:
        return draw(LEAF)
    if isinstance(document, str):
        return draw(TEXT)
    if isinstance(document, int) and not isinstance(document, bool) and document:
        return draw(st.integers(0, 10**6))
    return document


@FEW
@given(st.data())
def test_any_chunks_give_the_same_rows_as_the_full_parser(data: st.DataObject) -> None:
    alike._KNOWN.clear()
    first = data.draw(documents())
    spaces: Any = data.draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    ascii_only = data.draw(st.booleans())

    def wire(document: Any) -> bytes:
        return json.dumps(document, separators=spaces, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")

    try:
        both = Both(wire(first))
    except (ValueError, ServerFault):
        return  # no chunk at all
    later = [wire(varied(first, data.draw)) for _ in range(data.draw(st.integers(1, 6)))]
    for number, payload in enumerate(later):
        both.one(number + 1, payload)
    both.many(later)
    if (failure := _unfinished(both.full)) is not None:
        assert _unfinished(both.short) == failure
    else:
        both.assert_same()


def _unfinished(reader: Reader) -> str | None:
    try:
        reader.finish()
    except ValueError as error:
        return type(error).__name__
    return None


def test_http_and_events_agree_that_a_framed_chunk_is_one_event() -> None:
    response = Response()
    states = []
    for data in (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"a5\r\ndata", b"x" * 161, b"\r\n", b"0\r\n\r\n"):
        response.feed(data)
        states.append(response.between_chunks)
    assert states == [True, False, False, True, False]
    again = Response()
    again.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert Decoder().feed(again.feed(framed(chunk("a")))) == [chunk("a")]
    assert Alike(Columns(0)).read(0, framed(chunk("a"))) == 0
