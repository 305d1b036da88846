"""What no example list covers: every split of a stream into network reads, and bytes that are no stream at all."""

import asyncio
import json
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.recording import Recording
from bench.request import Deadlines, Listener
from bench.sse import Decoder
from bench.trace import Trace
from tests.bench.streams import CASES, END
from tests.fakes import render
from tests.fakes.builders import More, uniform
from tests.fakes.framing import pieces
from tests.fakes.script import Comment, Content, Reply, Role, Step
from tests.fakes.server import EVENT_STREAM, head, http_chunk

# derandomized: the same examples on every machine, nothing stored
FEW = settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
HEAD = head(200, EVENT_STREAM)
PLAYED = [name for name, (reply, _, _, error) in CASES.items() if reply.status == 200 and error is None]


def wire(name: str) -> bytes:
    """All bytes of the server's answer for this case."""
    reply = CASES[name][0]
    return HEAD + b"".join(http_chunk(piece.data) for piece in pieces(render.events(reply, "m", 0), reply.framing))


def replayed(reads: list[bytes], listen: Listener | None = None, apart_ns: int = 0, slice_reads: int = 64) -> Trace:
    """The trace of a connection that brings these reads and then closes. Fails if it is not over then. A listener hears every delta
    as it comes: with one, all is read by the full parser."""

    async def go() -> Trace:
        recording = Recording(Deadlines(), listen)
        recording.columns.begin_ns = 0
        for number, data in enumerate([*filter(None, reads), b""]):
            recording.keep(1000 + number * apart_ns, data)
        while recording.work(slice_reads):
            pass
        assert recording.over.done()
        return recording.trace(recording.error)

    return asyncio.run(go())


def split(data: bytes, borders: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(border % (len(data) + 1) for border in borders)})
    return [data[start:end] for start, end in pairwise(edges)]


@FEW
@given(st.sampled_from(PLAYED), st.lists(st.integers(0, 1 << 20), max_size=60))
def test_any_split_into_reads_gives_the_same_trace(name: str, borders: list[int]) -> None:
    data = wire(name)
    assert replayed(split(data, borders)) == replayed([data])


def test_bytes_one_by_one_give_the_same_trace() -> None:
    for name in PLAYED:
        data = wire(name)
        assert replayed([data[at : at + 1] for at in range(len(data))]) == replayed([data])
        assert replayed([data]).kinds == CASES[name][1]


WORDS = ["tok ", "Grüße", "世界", "🌍", 'a "b"', "\\\n", "\u200b", "x" * 300]


def varied() -> list[Step]:
    """90 chunks of text of every kind, and now and then a comment."""
    steps: list[Step] = [Role()]
    for number in range(90):
        steps += [Content(WORDS[number % len(WORDS)]), *([Comment()] if number % 31 == 30 else [])]
    return steps + END


LONG: dict[str, list[Step]] = {
    "varied": varied(),
    "usage": uniform(90, 2, usage="per-chunk"),
    "ids": uniform(90, 2, more=More(token_ids=True)),
    "timings": uniform(90, 2, usage="timings-per-chunk"),
}


@settings(FEW, max_examples=60)
@given(
    st.sampled_from(sorted(LONG)),
    st.lists(st.integers(0, 1 << 20), max_size=40),
    st.booleans(),
    st.sampled_from([1, 7, 64]),
    st.sampled_from(["event", "joined:3"]),
)
def test_templates_give_what_the_full_parser_gives(name: str, borders: list[int], whole: bool, slice_reads: int, framing: str) -> None:
    """Of a long stream, split at chunks or anywhere, whatever the slices in which it is parsed; each read has a time of its own."""
    chunks = [http_chunk(piece.data) for piece in pieces(render.events(Reply(LONG[name]), "m", 0), framing)]
    reads = [HEAD, *chunks] if whole else split(HEAD + b"".join(chunks), borders)
    full = replayed(reads, lambda kind, text: None, 1000)
    assert replayed(reads, None, 1000, slice_reads) == full
    assert full.error is None


def judged(trace: Trace) -> None:
    """Never a silent zero: without an error there is a finish reason, and a chunk that gave it."""
    assert trace.error is not None or (trace.finish_reason is not None and trace.kinds)
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


@FEW
@given(st.lists(st.binary(max_size=200), max_size=8), st.sampled_from([b"", HEAD, HEAD[:40], head(500, EVENT_STREAM)]))
def test_arbitrary_bytes_end_in_an_error(reads: list[bytes], before: bytes) -> None:
    trace = replayed([before, *reads])
    judged(trace)
    assert trace.error is not None


@FEW
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_arbitrary_bodies_end_in_an_error(bodies: list[bytes]) -> None:
    trace = replayed([HEAD, *(http_chunk(body) for body in bodies if body), http_chunk(b"")])
    judged(trace)
    assert trace.error is not None


@FEW
@given(st.sampled_from(PLAYED), st.data())
def test_a_damaged_stream_never_crashes(name: str, data: st.DataObject) -> None:
    whole = bytearray(wire(name))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    judged(replayed(split(bytes(whole), data.draw(st.lists(st.integers(0, 1 << 20), max_size=5)))))


def shaped(**optional: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Objects with any of these keys."""
    return st.fixed_dictionaries({}, optional=optional)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["index", "delta", "content", "x"]), inner, max_size=3),
    max_leaves=6,
)
DELTA = shaped(content=st.text(max_size=5) | JSON, reasoning=JSON, tool_calls=JSON)
CHOICE = shaped(index=st.just(0), delta=DELTA, finish_reason=JSON, token_ids=JSON)
CHUNK = shaped(
    choices=JSON | st.lists(CHOICE, max_size=2),
    usage=JSON | shaped(completion_tokens=JSON, prompt_tokens_details=JSON),
    timings=JSON,
    error=JSON,
)


@FEW
@given(st.lists(CHUNK, max_size=4))
def test_events_of_any_shape_never_crash(chunks: list[object]) -> None:
    events = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks)
    judged(replayed([HEAD, http_chunk(events) if events else b"", http_chunk(b"data: [DONE]\n\n"), http_chunk(b"")]))


@FEW
@given(st.lists(st.sampled_from([b"data: a", b"data:b", b"data", b": c", b"id: 1", b"\xef\xbb\xbfdata: d", b"", b""]), max_size=12),
       st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 500), max_size=10))  # fmt: skip
def test_lines_of_any_end_and_split_give_the_same_events(lines: list[bytes], line_end: bytes, borders: list[int]) -> None:
    data = b"".join(line + line_end for line in lines)
    decoder = Decoder()
    found = [payload for part in split(data, borders) for payload in decoder.feed(part)]
    unix = b"".join(line + b"\n" for line in lines)
    assert found == Decoder().feed(unix)
    assert found == plainly(lines)


def plainly(lines: list[bytes]) -> list[bytes]:
    """The same by the words of the standard, without any care for speed."""
    found: list[bytes] = []
    held: list[bytes] | None = None
    for number, line in enumerate(lines):
        line = line[3:] if number == 0 and line[:3] == b"\xef\xbb\xbf" else line
        if line == b"":
            if held is not None and b"\n".join(held):
                found.append(b"\n".join(held))
            held = None
        elif line.split(b":")[0] == b"data":
            value = line[5:]
            held = [*(held or []), value[1:] if value[:1] == b" " else value]
    return found
