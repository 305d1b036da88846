"""The life of the server process: started by hand, killed, orphaned."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import codec
from tests.fakes.builders import (
    count_reply,
)
from tests.fakes.plain_client import ask, body, chunks, eventually, raw, request, until
from tests.fakes.script import (
    Content,
    Reply,
    Scenario,
    Stall,
)
from tests.fakes.sse_server import ROOT, ScriptedServer


def test_started_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(codec.to_json(Scenario([count_reply(3, first_s=0.01)])), encoding="utf-8")
    argv = [sys.executable, "-m", "tests.fakes.sse_server", "--scenario", str(file), "--port", "0"]
    with subprocess.Popen([*argv, "--log", str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        word, port = child.stdout.readline().split()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5) as sock:
            ask(sock, body())
            until(sock, b"\r\n\r\n")
            assert len(list(chunks(sock))) == 7
        child.send_signal(signal.SIGTERM)
        assert (word, child.wait(5)) == ("listening", 0)
    assert len((tmp_path / "log" / "sent.jsonl").read_text().splitlines()) == 7


def test_kill_keeps_the_records() -> None:
    with ScriptedServer(Scenario([Reply([Content("a"), Stall()])])) as server, raw(server) as sock:
        until(sock, b"\n\n\r\n")
        server.kill()
        with pytest.raises((EOFError, ConnectionResetError)):
            until(sock, b"never")
        assert [record.kind for record in server.sent()][:1] == ["content"]
        with pytest.raises(ConnectionRefusedError):
            request(server, path="/health")


def test_child_ends_with_its_parent() -> None:
    code = "import os, signal; from tests.fakes.builders import count_reply; from tests.fakes.script import Scenario; "
    code += "from tests.fakes.sse_server import ScriptedServer; s = ScriptedServer(Scenario([count_reply(1)])); "
    code += "print(s.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: not os.path.exists(f"/proc/{int(done.stdout)}") or "Z" in _state(int(done.stdout)))


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]
