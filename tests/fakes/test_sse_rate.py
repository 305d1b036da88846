"""The scripted server keeps up, says when it did not, and its rarer scripts are what they say."""

import os
import selectors
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.fakes.builders import More, smoothed, uniform
from tests.fakes.plain_client import ask, body, raw, until
from tests.fakes.script import Content, Reply, Role, Scenario, Step, Wait
from tests.fakes.sse_server import ScriptedServer


def cpu_s(pid: int) -> float:
    """User and system time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def drain(server: ScriptedServer, streams: int) -> None:
    """Read this many replies to their end, as cheaply as possible."""
    waiting = selectors.DefaultSelector()
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        ask(sock, body())
        sock.setblocking(False)
        waiting.register(sock, selectors.EVENT_READ)
    while waiting.get_map():
        for key, _ in waiting.select(10):
            sock = key.fileobj  # type: ignore[assignment]
            if sock.recv(1 << 18).endswith(b"0\r\n\r\n"):
                waiting.unregister(sock)
                sock.close()


def test_64_streams() -> None:
    """5,000 tokens/s for two seconds. 20,000 take 42 us of one core each on a quiet machine; the limit allows for a busy one."""
    with ScriptedServer(Scenario([Reply(uniform(156, 1, 64 / 5000, 0.3, usage="per-chunk"))])) as server:
        before, begin = cpu_s(server.pid), time.monotonic()
        drain(server, 64)
        took, used = time.monotonic() - begin, cpu_s(server.pid) - before
        sent = [record for record in server.sent() if record.kind == "content"]
    assert len(sent) == 64 * 156
    assert used / len(sent) < 0.0005
    assert took < 2.3 + 4
    assert sorted(record.late_s for record in sent)[len(sent) // 2] < 0.1
    assert {record.request for record in sent} == set(range(64))
    for number in (0, 63):
        counts = [record.tokens for record in sent if record.request == number]
        assert counts == list(range(1, 157))


def test_a_stopped_server_is_late_by_its_own_log() -> None:
    with ScriptedServer(Scenario([Reply(uniform(20, gap_s=0.02))])) as server, raw(server) as sock:
        until(sock, b"\n\n\r\n")
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGCONT)
        until(sock, b"[DONE]\n\n\r\n")
        late = [record.late_s for record in server.sent()]
    assert max(late) > 0.2
    assert late[-1] < 0.2  # it catches up with its script, and does not push it back


def test_each_request_has_its_own_id() -> None:
    with ScriptedServer(Scenario([Reply([Content('"id":"chatcmpl-0"'), Content("b")])])) as server:
        for number in range(12):
            with raw(server) as sock:
                text = until(sock, b"0\r\n\r\n").decode()
            assert text.count(f'{{"id":"chatcmpl-{number}",') == 2
            assert r"\"id\":\"chatcmpl-0\"" in text  # text that looks like an id stays
        sizes = {record.request: record.n_bytes for record in server.sent() if record.step == 1}
    assert sizes[10] == sizes[9] + 1


def test_smoothed_steps() -> None:
    assert smoothed(4, 2, 0.04, more=More(word="x"))[:9] == [
        Role(), Wait(0.04), Content("x"), Wait(0.02), Content("x"), Wait(0.02), Content("x"), Wait(0.02), Content("x"),
    ]  # fmt: skip


@pytest.mark.parametrize("wait", [0.0, 0.01])
def test_waits_of_many_streams_are_kept_apart(wait: float) -> None:
    steps: list[Step] = [Wait(wait), Content("a"), Wait(0.05), Content("b")]
    with ScriptedServer(Scenario([Reply(steps)])) as server:
        drain(server, 5)
        received = {request.index: request.t_received_ns for request in server.requests()}
        due = {record.due_ns - received[record.request] for record in server.sent() if record.kind == "content"}
    assert due == {round(wait * 1e9), round((wait + 0.05) * 1e9)}
