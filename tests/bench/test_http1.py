"""The HTTP and event-stream parsers on bytes written by hand: what they take, what they refuse."""

import pytest

from bench import http1, sse
from bench.http1 import BadResponse, Response
from bench.sse import Decoder, TooLong

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A:  b \r\n\r\n"


def begun(head: bytes = CHUNKED) -> Response:
    response = Response()
    assert response.feed(head) == b""
    return response


def test_chunks_with_extension_and_trailer() -> None:
    response = begun()
    assert (response.status, response.headers) == (200, {"transfer-encoding": "chunked", "x-a": "b"})
    assert response.feed(b"5\r\nhello\r\n") == b"hello"
    assert response.feed(b"00A;name=value\r\n0123456789\r\n1\r") == b"0123456789"
    assert response.feed(b"\nx\r") == b"x"
    assert response.feed(b"\n0\r\nTrailer: x\r\n") == b""
    with pytest.raises(BadResponse, match="inside the answer"):
        response.end()
    assert response.feed(b"\r\nafter the end") == b""
    assert response.complete
    response.end()


@pytest.mark.parametrize(
    "data",
    [
        b"5\r\nhelloXX",
        b"5\r\nhelloX",
        b"5\r\nhello\n\n",
        b"-5\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"\r\n",
        b"5_0\r\n",
        b"g" * 5000,
    ],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponse, match=r"an HTTP chunk longer than its size|no size of an HTTP chunk"):
        begun().feed(data)


def test_a_stated_length_ends_the_body() -> None:
    response = Response()
    assert response.feed(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhel") == b"hel"
    with pytest.raises(BadResponse, match="inside the answer"):
        response.end()
    assert response.feed(b"lo, and more") == b"lo"
    assert response.complete
    assert begun(b"HTTP/1.1 204 No Content\r\n\r\n").complete
    assert begun(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n").complete


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(BadResponse):
        Response().feed(head)


def test_an_endless_trailer_is_refused() -> None:
    response = begun()
    response.feed(b"0\r\n")
    with pytest.raises(BadResponse, match="a trailer of more than 64 KiB"):
        response.feed(b"a" * (http1.MAX_HEAD_BYTES + 1))


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\rdata: b\n\n", [b"a\nb"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:  two blanks\n\n", [b" two blanks"]),
        (b"data: a\r\n\r\n: x\r\n\r\ndata: b\r\r", [b"a", b"b"]),
        (b"event: x\nid: 1\nretry: 5\n\n", []),
        (b"data\n\n", []),
        (b"dataset: a\n\n", []),
        (b"data: unfinished\n", []),
    ],
)
def test_events(data: bytes, payloads: list[bytes]) -> None:
    assert Decoder().feed(data) == payloads


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    one_line, many_lines = Decoder(), Decoder()
    for _ in range(100):
        one_line.feed(b"data: 1234")
    for _ in range(166):  # 6 bytes a line are held: the blank and the value, and the LF between two
        many_lines.feed(b"data: 1234\n")
    with pytest.raises(TooLong):
        one_line.feed(b"d")
    with pytest.raises(TooLong):
        many_lines.feed(b"data: 1234\n")
    for _ in range(300):
        assert Decoder().feed(b"data: 1234\n\n") == [b"1234"]  # whole events do not add up
